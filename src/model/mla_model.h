// The target model: embedding, layers, final norm, vocabulary head. Written once for all devices.
// Owner: the executor. Thread rule: one forward pass at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/decoder_layer.h"
#include "model/rope.h"

namespace foresail {

// Token embedding table, in its checkpoint precision (f16 becomes f32).
struct EmbeddingTable {
  HostTensor tensor;  // [V, H]
  float scale = 1.0f;
  void move_to(Memory& memory) { tensor.data = moved_to(memory, std::move(tensor.data)); }
  bool present() const { return !tensor.shape.empty(); }
  MatrixView view() const;
};

// In host memory.
EmbeddingTable load_embedding(WeightLoader& loader, const std::string& name,
                              const ModelConfig& config);

class MlaModel {
 public:
  // Reads every tensor of the target; positions up to context_len - 1 can be used.
  MlaModel(const ModelConfig& config, WeightLoader& loader, KernelSet& kernels,
           int64_t context_len);

  struct Output {
    MatrixView logits;  // f32 [logit_rows, V]
    MatrixView hidden;  // f32 [T, H], after the final norm
  };
  // `caches` holds one LatentCache per layer. The output lies in the memory of the kernels and
  // lives until the next forward pass.
  Output forward(const ForwardBatch& batch, std::span<const LatentCache> caches);
  // The choice of the batch from logits of a forward pass that was asked for none: for what has to
  // be known of it only while that pass runs.
  void choose(const ForwardBatch& batch, const MatrixView& logits,
              std::span<const LatentCache> caches);

  const ModelConfig& config() const { return config_; }
  const EmbeddingTable& embedding() const { return embedding_; }
  const Matrix& head() const { return *head_; }
  // The rows of the vocabulary head that belong to `ids`, read once more from the loader that the
  // model came from.
  MatrixPtr load_head_rows(std::span<const int32_t> ids, WeightLoader& loader) const;
  int64_t context_len() const { return rope_.position_count(); }
  KernelSet& kernels() const { return kernels_; }
  Arena& arena() { return arena_; }
  RopeTable rope() const { return rope_.view(); }
  // Per-row query factor for models that scale queries by position; empty when they do not.
  std::vector<float> query_scale(std::span<const int32_t> positions) const;

 private:
  PassInputs inputs_of(const ForwardBatch& batch, std::span<const LatentCache> caches) const;
  void queue_choice(const ForwardBatch& batch, const MatrixView& logits);
  PassWork work_of(const ForwardBatch& batch, std::span<const LatentCache> caches) const;

  ModelConfig config_;
  KernelSet& kernels_;
  EmbeddingTable embedding_;
  std::vector<DecoderLayer> layers_;
  Buffer final_norm_;
  MatrixPtr head_;
  RopeTables rope_;
  const uint64_t work_id_ = new_work_id();
  Arena arena_;
};

}  // namespace foresail
