// A serving loop over the scripted model of digest_kernels.h, with the drafter of the test's
// choice. Owned by a test. One thread.
#pragma once

#include "engine/digest_head.h"
#include "engine/digest_kernels.h"
#include "engine/engine_harness.h"

namespace foresail {

// The next token as a pure function of the context.
using NextToken = std::function<int32_t(std::span<const int32_t> context)>;

// Greedy output is what `next` says.
Script certain(NextToken next);
// A text without a pattern: a hash of the context, never an end token.
int32_t hashed_token(std::span<const int32_t> context);
// Right in `percent` of all contexts, otherwise off by one.
NextToken often_right(NextToken next, int percent);

// What greedy decoding without penalties gives, end tokens ignored.
std::vector<int32_t> continue_text(const NextToken& next, std::vector<int32_t> context,
                                   int64_t count);

class ScriptedLoop {
 public:
  // options.model_path and dtype are set here.
  ScriptedLoop(EngineOptions options, Script script);

  // Drafts with KV of its own, checked at every pass; or with anything else, or (null) not at all.
  void use_digest_drafter(DigestHead::Guess guess);
  std::unique_ptr<Drafter> digest_drafter(DigestHead::Guess guess);
  // Drafts with a second scripted model, which has a cache of its own.
  void use_model_drafter(Script script);
  void use_drafter(std::unique_ptr<Drafter> drafter);
  const std::vector<DigestHead::Pass>& draft_passes() const { return *passes_; }

  // Of the loops made from now on, which otherwise have none.
  void use_tokenizer(const Tokenizer& tokenizer) { tokenizer_ = &tokenizer; }

  // With the drafter and the options as they are now.
  EngineLoop& loop();
  // A loop with an empty cache, from changed options (of EngineOptions' own fields, and steps).
  EngineLoop& restart(const EngineOptions& options);
  LoadedModel& model() { return model_; }

 private:
  EngineOptions options_;
  const Tokenizer* tokenizer_ = nullptr;
  std::shared_ptr<KnownContexts> contexts_ = std::make_shared<KnownContexts>();
  std::unique_ptr<KernelSet> draft_kernels_;
  LoadedModel model_;
  std::unique_ptr<EngineLoop> loop_;
  std::shared_ptr<std::vector<DigestHead::Pass>> passes_;
};

// Options of a small loop: f32, one thread, absorbed attention, 16-token pages.
EngineOptions scripted_options();
Request scripted_request(std::vector<int32_t> prompt, int64_t max_tokens);
// `length` tokens that depend on `seed`, none of them an end token.
std::vector<int32_t> scripted_prompt(int length, uint64_t seed = 1);
// Nothing is owned or in flight, and the pages add up.
void expect_idle(const EngineLoop& loop);

}  // namespace foresail
