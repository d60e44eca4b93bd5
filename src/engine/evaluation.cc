#include "engine/evaluation.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/scratch.h"
#include "speculative/head_drafter.h"

namespace foresail {
namespace {

constexpr int64_t kDefaultWindow = 2048;
// Bounds the logits held at once, and keeps every pass below the size from which activations are
// rounded (model/pass.h): what is measured is the model.
constexpr int64_t kChunkRows = 128;

// One pass over positions [begin, begin + ids.size()) of slot 0 with logits for every row from
// first_row on.
class Pass0 {
 public:
  Pass0(LoadedModel& model, PassPlanner& planner) : model_(model), planner_(planner) {
    for (int64_t page = 1; page <= model.pages_per_slot(); ++page)
      page_table_.push_back(static_cast<int32_t>(page));
  }
  // f32 [ids - first_row, V] in host memory, until the next run.
  MatrixView run(std::span<const int32_t> ids, int64_t begin,
                 std::span<const HiddenCapture> captures = {}, int64_t first_row = 0) {
    const int page_size = model_.store().page_size();
    positions_.clear();
    slots_.clear();
    rows_.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto position = static_cast<int32_t>(begin + static_cast<int64_t>(i));
      positions_.push_back(position);
      slots_.push_back(page_table_[position / page_size] * page_size + position % page_size);
      if (static_cast<int64_t>(i) >= first_row) rows_.push_back(static_cast<int32_t>(i));
    }
    const auto row_count = static_cast<int32_t>(ids.size());
    const PassRows request{page_table_.data(),
                           {row_count, static_cast<int32_t>(begin) + row_count}};
    const PreparedPass pass = planner_.prepare(PassKind::kPrefill, {&request, 1});
    const MlaModel::Output output =
        model_.model().forward({ids, positions_, slots_, pass.sequences, rows_, captures,
                                pass.plan.path, pass.prefix_parts},
                               model_.store().layers(pass.keys_are_slots()));
    return on_host(model_.kernels().memory(), output.logits, logits_);
  }
  const std::vector<int32_t>& page_table() const { return page_table_; }

 private:
  LoadedModel& model_;
  PassPlanner& planner_;
  std::vector<int32_t> page_table_, positions_, slots_, rows_;
  Buffer logits_;  // a copy where the host cannot read them
};

// log2 of the probability of `token` under softmax(logits).
double log2_probability(std::span<const float> logits, int32_t token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return (static_cast<double>(logits[token] - largest) - std::log(sum)) / std::log(2.0);
}

void check_vocabulary(std::span<const int32_t> ids, const ModelConfig& config) {
  if (ids.empty()) throw_error(ErrorCode::kUsage, "no token ids were given");
  for (const int32_t id : ids)
    if (id < 0 || id >= config.vocab_size)
      throw_error(ErrorCode::kUsage, "token id {} is outside the vocabulary of {}", id,
                  config.vocab_size);
}

}  // namespace

void check_token_ids(std::span<const int32_t> ids, const ModelConfig& config) {
  check_vocabulary(ids, config);
  if (static_cast<int64_t>(ids.size()) > config.max_positions)
    throw_error(ErrorCode::kUsage, "{} token ids were given, but the model has {} positions",
                ids.size(), config.max_positions);
}

int64_t perplexity_window(int64_t asked, int64_t context_length) {
  const int64_t window = asked == 0 ? std::min(kDefaultWindow, context_length) : asked;
  if (window < 2 || window > context_length)
    throw_error(ErrorCode::kUsage, "options.window {} must lie between 2 and the context length {}",
                window, context_length);
  return window;
}

std::vector<NamedTensor> evaluate_logits(LoadedModel& model, std::span<const int32_t> ids,
                                         const std::string& path) {
  check_token_ids(ids, model.config());
  const ModelConfig& config = model.config();
  const auto token_count = static_cast<int64_t>(ids.size());
  std::vector<NamedTensor> result{{"logits", {token_count, config.vocab_size}, {}, {}}};
  AttentionConfig config_of_path = model.planner().config();
  if (const auto wanted = parse_attention_path(path)) config_of_path.prefill_path = wanted;
  PassPlanner planner(config_of_path, config);
  Pass0 pass(model, planner);
  Memory& memory = model.kernels().memory();
  const int layer_count = static_cast<int>(config.layer_count);
  for (int64_t begin = 0; begin < token_count; begin += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, token_count - begin);
    std::vector<Buffer> states;
    std::vector<HiddenCapture> captures;
    const bool is_last = begin + rows == token_count;
    for (int layer = 0; is_last && layer <= layer_count; ++layer) {
      states.emplace_back(rows * config.hidden_dim * sizeof(float), memory);
      captures.push_back(
          {layer == layer_count ? HiddenCapture::kAfterFinalNorm : layer,
           {states.back().data(), DType::kF32, rows, config.hidden_dim, config.hidden_dim}});
    }
    const MatrixView output = pass.run(ids.subspan(begin, rows), begin, captures);
    const auto* logits = static_cast<const float*>(output.data);
    result[0].values.insert(result[0].values.end(), logits, logits + rows * config.vocab_size);
    Buffer staging;
    for (size_t layer = 0; layer < states.size(); ++layer) {
      const MatrixView last = on_host(memory, row_range(captures[layer].out, rows - 1, 1), staging);
      const auto* values = static_cast<const float*>(last.data);
      result.push_back({"hidden." + std::to_string(layer),
                        {config.hidden_dim},
                        {values, values + config.hidden_dim},
                        {}});
    }
  }
  return result;
}

Perplexity evaluate_perplexity(LoadedModel& model, const Tokenizer& tokenizer,
                               const std::string& text, int64_t window,
                               const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<int32_t> ids = tokenizer.encode(text, {.add_bos = true});
  check_vocabulary(ids, model.config());
  window = perplexity_window(window, model.context_length());
  Perplexity result{.window = window};
  double bits = 0.0;
  const auto total = static_cast<int64_t>(ids.size());
  // Every window starts as a prompt does: in place of its first tokens, whose turn to be scored is
  // over, stand those that the tokenizer puts before a text.
  const std::vector<int32_t> prefix = tokenizer.encode("", {.add_bos = true});
  if (static_cast<int64_t>(prefix.size()) > window / 2)
    throw_error(ErrorCode::kUsage, "options.window {} is too short: give at least {}", window,
                2 * prefix.size());
  Pass0 pass(model, model.planner());
  int64_t scored_until = 1;  // the first token has no prediction
  for (int64_t begin = 0; scored_until < total; begin += window / 2) {
    const int64_t end = std::min(total, begin + window);
    std::vector<int32_t> input(ids.begin() + begin, ids.begin() + end);
    std::copy_n(prefix.begin(), std::min(prefix.size(), input.size()), input.begin());
    for (int64_t at = begin; at < end; at += kChunkRows) {
      const int64_t rows = std::min(kChunkRows, end - at);
      // Those before were scored in the window before; the last row of a pass always is asked for.
      const int64_t first = std::clamp<int64_t>(scored_until - at - 1, 0, rows - 1);
      const MatrixView read =
          pass.run(std::span(input).subspan(at - begin, rows), at - begin, {}, first);
      for (int64_t row = first; row < rows; ++row) {
        const int64_t predicted = at + row + 1;
        if (predicted < scored_until || predicted >= end) continue;
        const auto* logits = static_cast<const float*>(row_range(read, row - first, 1).data);
        bits -= log2_probability({logits, static_cast<size_t>(read.cols)}, ids[predicted]);
        result.byte_count += static_cast<int64_t>(tokenizer.token_bytes(ids[predicted]).size());
        ++result.token_count;
      }
      if (progress) progress(result.token_count, total - 1);
    }
    scored_until = std::max(scored_until, end);
  }
  result.bits_per_byte =
      result.byte_count == 0 ? 0.0 : bits / static_cast<double>(result.byte_count);
  result.perplexity =
      result.token_count == 0 ? 1.0 : std::exp2(bits / static_cast<double>(result.token_count));
  return result;
}

std::vector<NamedTensor> evaluate_drafts(LoadedModel& model, std::span<const int32_t> ids,
                                         int steps) {
  check_token_ids(ids, model.config());
  auto* drafter = dynamic_cast<HeadDrafter*>(model.drafter());
  if (drafter == nullptr)
    throw_error(ErrorCode::kUsage,
                "eval drafts needs options.speculative.algorithm MTP, EAGLE or EAGLE3");
  NamedTensor logits{"draft_logits", {steps, 0}, {}, {}}, states{"draft_state", {steps, 0}, {}, {}},
      drafts{"drafts", {steps}, {}, {}};
  drafter->observe([&](const HeadDrafter::Proposal& proposal, std::span<const float> row) {
    logits.values.insert(logits.values.end(), row.begin(), row.end());
    states.values.insert(states.values.end(), proposal.state.begin(), proposal.state.end());
    logits.shape[1] = static_cast<int64_t>(row.size());
    states.shape[1] = static_cast<int64_t>(proposal.state.size());
    drafts.ids.push_back(proposal.token);
  });
  const std::vector<int32_t> page_table = Pass0(model, model.planner()).page_table();
  RequestState request;
  request.page_table = page_table.data();
  request.tokens.assign(ids.begin(), ids.end());
  request.sampling.temperature = 0.0f;
  request.draft_steps = steps;
  const PrefillRows rows{&request, 0, static_cast<int32_t>(ids.size())};
  RequestState* const running[] = {&request};
  model.iteration().prefill({&rows, 1});
  model.iteration().draft(running);
  drafter->observe({});
  NamedTensor next{"next", {1}, {}, {request.tokens[ids.size()]}};
  return {logits, states, drafts, next};
}

}  // namespace foresail
