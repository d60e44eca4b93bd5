#include "model/mla_model.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace foresail {

EmbeddingTable load_embedding(WeightLoader& loader, const std::string& name,
                              const ModelConfig& config) {
  const int64_t rows = config.vocab_size;
  const int64_t cols = config.hidden_dim;
  HostTensor source = loader.tensor(name, {rows, cols});
  if (source.dtype == DType::kF16) {
    HostTensor wide{DType::kF32, source.shape, Buffer(rows * cols * sizeof(float))};
    for (int64_t i = 0; i < rows * cols; ++i) wide.data.as<float>()[i] = element(source, i);
    source = std::move(wide);
  }
  loader.account(source.data.size_bytes());
  return {std::move(source), static_cast<float>(config.embedding_scale)};
}

namespace {

constexpr const char* kEmbeddingTensor = "model.embed_tokens.weight";
constexpr const char* kHeadTensor = "lm_head.weight";

bool has_head_of_its_own(const WeightLoader& loader, const ModelConfig& config) {
  return loader.has(kHeadTensor) || !config.tied_embeddings;
}

}  // namespace

MatrixView EmbeddingTable::view() const {
  return {tensor.data.data(), tensor.dtype, tensor.shape[0], tensor.shape[1], tensor.shape[1]};
}

MlaModel::MlaModel(const ModelConfig& config, WeightLoader& loader, KernelSet& kernels,
                   int64_t context_len)
    : config_(config),
      kernels_(kernels),
      rope_(config, context_len, kernels.memory()),
      arena_(kernels.memory()) {
  embedding_ = load_embedding(loader, kEmbeddingTensor, config);
  for (int64_t layer = 0; layer < config.layer_count; ++layer)
    layers_.emplace_back(config, loader, "model.layers." + std::to_string(layer) + ".",
                         config.layer_is_moe[layer]);
  final_norm_ = loader.vector("model.norm.weight", config.hidden_dim);
  if (has_head_of_its_own(loader, config)) {
    head_ = loader.matrix(kHeadTensor, config.vocab_size, config.hidden_dim);
  } else {
    const MatrixView table = embedding_.view();
    head_ = loader.pack({table.data, table.dtype, table.rows, table.cols, table.stride});
  }
  embedding_.move_to(kernels.memory());
}

MatrixPtr MlaModel::load_head_rows(std::span<const int32_t> ids, WeightLoader& loader) const {
  // Not from embedding_, which may lie on a device.
  const bool own = has_head_of_its_own(loader, config_);
  const HostTensor table =
      loader.tensor(own ? kHeadTensor : kEmbeddingTensor, {config_.vocab_size, config_.hidden_dim});
  const size_t row_bytes = config_.hidden_dim * size_bytes(table.dtype);
  Buffer rows(ids.size() * row_bytes);
  for (size_t i = 0; i < ids.size(); ++i)
    std::memcpy(rows.data() + i * row_bytes, table.data.data() + ids[i] * row_bytes, row_bytes);
  return loader.pack({rows.data(), table.dtype, static_cast<int64_t>(ids.size()),
                      config_.hidden_dim, config_.hidden_dim});
}

std::vector<float> MlaModel::query_scale(std::span<const int32_t> positions) const {
  const double beta = config_.rope.query_scaling_beta;
  if (beta == 0.0) return {};
  std::vector<float> scale(positions.size());
  const double window = static_cast<double>(config_.rope.original_max_positions);
  for (size_t i = 0; i < scale.size(); ++i)
    scale[i] = static_cast<float>(1.0 + beta * std::log(1.0 + std::floor(positions[i] / window)));
  return scale;
}

MlaModel::Output MlaModel::forward(const ForwardBatch& batch, std::span<const LatentCache> caches) {
  FORESAIL_CHECK(caches.size() == layers_.size(), "{} caches, {} layers", caches.size(),
                 layers_.size());
  arena_.reset();
  const std::vector<float> scale = query_scale(batch.positions);
  Pass pass{.kernels = kernels_,
            .arena = arena_,
            .positions = batch.positions,
            .slots = batch.slots,
            .sequences = batch.sequences,
            .path = batch.path,
            .rope = rope_.view(),
            .query_scale = scale.empty() ? nullptr : scale.data(),
            .prefix_parts = batch.prefix_parts};
  const int64_t hidden_dim = config_.hidden_dim;
  const int64_t logit_count = static_cast<int64_t>(batch.logit_rows.size());
  const MatrixView h = pass.f32(hidden_dim);
  const MatrixView hidden = pass.f32(hidden_dim);
  const MatrixView picked = scratch_matrix(arena_, DType::kF32, logit_count, hidden_dim);
  const MatrixView logits = scratch_matrix(arena_, DType::kF32, logit_count, config_.vocab_size);
  PassInputs inputs = inputs_of(batch, caches);
  inputs.row_scale = scale;
  // Which parts of a prefix an expanded pass reads is decided on the host.
  if (batch.path != AttentionPath::kExpanded) inputs.work = work_of(batch, caches).value();
  if (kernels_.begin_pass(inputs)) return {logits, hidden};
  const auto capture = [&](int layer, const MatrixView& state) {
    for (const HiddenCapture& wanted : batch.captures)
      if (wanted.layer == layer) kernels_.convert(state, wanted.out);
  };
  kernels_.embed(batch.token_ids, embedding_.view(), embedding_.scale, h);
  kernels_.begin_layers(static_cast<int64_t>(layers_.size()));
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    capture(static_cast<int>(layer), h);
    layers_[layer].forward(pass, caches[layer], h);
  }
  kernels_.end_layers();
  capture(static_cast<int>(layers_.size()), h);
  kernels_.rms_norm(h, final_norm_.as<float>(), static_cast<float>(config_.rms_norm_eps), hidden);
  capture(HiddenCapture::kAfterFinalNorm, hidden);
  if (logit_count > 0) {
    kernels_.gather_rows(hidden, batch.logit_rows, picked);
    kernels_.linear(picked, *head_, nullptr, static_cast<float>(config_.logit_scale), false,
                    logits);
  }
  queue_choice(batch, logits);
  kernels_.end_pass();
  return {logits, hidden};
}

void MlaModel::choose(const ForwardBatch& batch, const MatrixView& logits,
                      std::span<const LatentCache> caches) {
  FORESAIL_CHECK(batch.carry.from == nullptr, "a choice by itself carries nothing, {} rows",
                 batch.token_ids.size());
  PassInputs inputs = inputs_of(batch, caches);
  inputs.work = work_of(batch, caches).mix(logits.data).value();
  if (kernels_.begin_pass(inputs)) return;
  queue_choice(batch, logits);
  kernels_.end_pass();
}

void MlaModel::queue_choice(const ForwardBatch& batch, const MatrixView& logits) {
  const ChoiceBatch& choice = batch.choice;
  if (!choice.terms.empty())
    kernels_.choose_with_terms(
        logits, choice.draws,
        {choice.terms, batch.token_ids, choice.term_table, choice.logprobs, choice.masks},
        choice.tokens);
  else if (!choice.draws.empty())
    kernels_.choose_tokens(logits, choice.draws, nullptr, true, choice.tokens);
  if (!choice.pretended.empty())
    kernels_.accept_drafts(choice.tokens, batch.token_ids, batch.sequences, choice.pretended,
                           choice.next_tokens, choice.lag);
}

PassInputs MlaModel::inputs_of(const ForwardBatch& batch,
                               std::span<const LatentCache> caches) const {
  return {.token_ids = batch.token_ids,
          .positions = batch.positions,
          .slots = batch.slots,
          .sequences = batch.sequences,
          .wanted_rows = batch.logit_rows,
          .draws = batch.choice.draws,
          .terms = batch.choice.terms,
          .pretended = batch.choice.pretended,
          .page_size = caches[0].page_size,
          .carry = batch.carry};
}

PassWork MlaModel::work_of(const ForwardBatch& batch, std::span<const LatentCache> caches) const {
  PassWork work(caches);
  work.mix(work_id_);
  for (const HiddenCapture& capture : batch.captures)
    work.mix(static_cast<uint64_t>(capture.layer)).mix(capture.out.data);
  work.mix(batch.choice.tokens).mix(batch.choice.next_tokens).mix(batch.choice.lag);
  work.mix(batch.choice.term_table).mix(batch.choice.masks).mix(batch.choice.logprobs);
  return work;
}

}  // namespace foresail
