// The shape of /generate: text and ids, and what is known about them. Events tell all so far, as
// SGLang's do and its clients expect; or what is new, where the server is told to.
#include <span>

#include "base/json.h"
#include "server/api/json_text.h"
#include "server/api/logprobs.h"
#include "server/api/projection.h"

namespace foresail {
namespace {

class GenerateProjection final : public Projection {
 public:
  GenerateProjection(const GenerationSpec& spec, const ServedModel& model)
      : is_list_(spec.batch || spec.choices > 1),
        logprobs_(spec.options.top_logprobs),
        scores_prompt_(spec.options.prompt_top_logprobs.has_value()),
        logprob_start_(spec.logprob_start),
        incremental_(model.incremental_generate),
        tokenizer_(spec.names_in_logprobs ? model.tokenizer : nullptr) {}

  std::string whole(const GenerationRecord& record) const override {
    if (!is_list_) return json_text(answer(record, whole_of(record.choices[0])));
    OrderedJson list = OrderedJson::array();
    for (const Choice& choice : record.choices) list.push_back(answer(record, whole_of(choice)));
    return json_text(list);
  }

  // Of what ends before it begins: no output was asked for.
  std::string opening(const GenerationRecord& record) const override {
    std::string events;
    for (const Choice& choice : record.choices)
      if (choice.finish) events += told(record, whole_of(choice));
    return events;
  }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    const Choice& choice = record.choices[piece.choice];
    // The prompt's log probabilities only in the first event and the last: they do not change, and
    // may be a megabyte.
    const bool is_first = choice.ids.size() == piece.ids.size();
    Told part = whole_of(choice);
    part.prompt = is_first || choice.finish;
    if (incremental_) {
      part.text = piece.text;
      part.ids = piece.ids;
      part.logprobs = piece.logprobs;
    }
    return told(record, part);
  }

  std::string closing(const GenerationRecord&) const override { return std::string(kDoneEvent); }
  bool tells_aborts() const override { return true; }

 private:
  // What an answer or an event says of a choice.
  struct Told {
    const Choice& choice;
    bool prompt;  // its log probabilities too
    std::string_view text;
    std::span<const int32_t> ids;
    std::span<const TokenLogprobs> logprobs;
  };
  static Told whole_of(const Choice& choice) {
    return {choice, true, choice.text, choice.ids, choice.logprobs};
  }

  std::string told(const GenerationRecord& record, const Told& part) const {
    OrderedJson json = answer(record, part);
    if (is_list_) json["index"] = part.choice.index;
    return event(json_text(json));
  }

  OrderedJson answer(const GenerationRecord& record, const Told& part) const {
    OrderedJson meta = meta_info_json(record, part.choice);
    if (logprobs_) add_logprobs(meta, record, part);
    OrderedJson answer = object_of({{"text", part.text}, {"output_ids", part.ids}});
    answer["meta_info"] = std::move(meta);
    return answer;
  }

  void add_logprobs(OrderedJson& meta, const GenerationRecord& record, const Told& part) const {
    const Choice& choice = part.choice;
    OrderedJson input = OrderedJson::array(), output = input, input_top = input, output_top = input;
    const std::vector<int32_t>& prompt = record.prompts[choice.prompt];
    // They come with the first token. The first one that is told has none: what it follows is not.
    if (part.prompt && scores_prompt_ && choice.prompt_logprobs.size() + 1 == prompt.size())
      for (auto i = static_cast<size_t>(logprob_start_); i < prompt.size(); ++i) {
        const bool first = i == static_cast<size_t>(logprob_start_);
        const TokenLogprobs* logprobs = first ? nullptr : &choice.prompt_logprobs[i - 1];
        input.push_back(native_logprob(tokenizer_, prompt[i], logprobs));
        input_top.push_back(native_top_logprobs(tokenizer_, logprobs));
      }
    for (size_t i = 0; i < part.logprobs.size(); ++i) {
      output.push_back(native_logprob(tokenizer_, part.ids[i], &part.logprobs[i]));
      output_top.push_back(native_top_logprobs(tokenizer_, &part.logprobs[i]));
    }
    meta["input_token_logprobs"] = std::move(input);
    meta["output_token_logprobs"] = std::move(output);
    if (*logprobs_ == 0) return;
    meta["input_top_logprobs"] = std::move(input_top);
    meta["output_top_logprobs"] = std::move(output_top);
  }

  bool is_list_;
  std::optional<int> logprobs_;  // how many best ones
  bool scores_prompt_;
  int64_t logprob_start_;
  bool incremental_;
  const Tokenizer* tokenizer_;  // null: tokens are told by their ids alone
};

}  // namespace

std::unique_ptr<Projection> generate_projection(const GenerationSpec& spec,
                                                const ServedModel& model) {
  return std::make_unique<GenerateProjection>(spec, model);
}

}  // namespace foresail
