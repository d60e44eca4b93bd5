#include "checkpoint/name_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/checked_math.h"
#include "base/error.h"
#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kFusedGateUp = ".mlp.experts.gate_up_proj";
constexpr std::string_view kFusedDown = ".mlp.experts.down_proj";

// Not part of the text model of a vision wrapper.
constexpr std::string_view kVisionPrefixes[] = {
    "vision_tower.", "vision_model.",       "vision_encoder.",
    "visual.",       "mm_projector.",       "multi_modal_projector.",
    "patch_merger.", "model.vision_tower.", "model.vision_model.",
    "model.visual.", "model.mm_projector.", "model.multi_modal_projector."};

constexpr std::string_view kIgnorableSuffixes[] = {
    ".rotary_emb.inv_freq", ".self_attn.k_proj.k_scale", ".self_attn.v_proj.v_scale",
    ".self_attn.k_scale", ".self_attn.v_scale"};

// The layer of "model.layers.12.…", or -1.
int64_t layer_of(std::string_view canonical) {
  if (!canonical.starts_with(kLayerPrefix)) return -1;
  const std::string_view rest = canonical.substr(kLayerPrefix.size());
  int64_t layer = -1;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const bool whole =
      result.ec == std::errc() && result.ptr != rest.data() + rest.size() && *result.ptr == '.';
  return whole ? layer : -1;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool strip_suffix(std::string_view& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  return true;
}

}  // namespace

std::string canonical_name(std::string_view stored) {
  constexpr std::string_view kInner = "model.language_model.";
  constexpr std::string_view kOuter = "language_model.";
  if (stored.starts_with(kInner)) {
    stored.remove_prefix(kInner.size());
    return stored.starts_with("model.") || stored.starts_with("lm_head.")
               ? std::string(stored)
               : "model." + std::string(stored);
  }
  if (stored.starts_with(kOuter)) stored.remove_prefix(kOuter.size());
  return std::string(stored);
}

bool is_ignorable(std::string_view canonical, const ModelConfig& config) {
  for (const std::string_view suffix : kIgnorableSuffixes)
    if (canonical.ends_with(suffix)) return true;
  if (config.tied_embeddings && canonical == "lm_head.weight") return true;
  if (!config.wrapped) return false;
  return std::any_of(std::begin(kVisionPrefixes), std::end(kVisionPrefixes),
                     [&](std::string_view prefix) { return canonical.starts_with(prefix); });
}

NameMap::NameMap(const ShardSet& shards, const ModelConfig& config) {
  for (uint32_t file = 0; file < shards.files.size(); ++file) {
    const size_t count = shards.files[file].header().tensor_count();
    for (uint32_t tensor = 0; tensor < count; ++tensor) add(shards, config, file, tensor);
  }
  for (const auto& [name, slice] : slices_)
    if (name.ends_with(".eh_proj.weight"))
      mtp_layer_count_ = std::max(mtp_layer_count_, layer_of(name) - config.layer_count + 1);
  constexpr int64_t kMostMtpLayers = 64;
  if (mtp_layer_count_ > kMostMtpLayers)
    throw_model_error(
        "{}: an MTP layer {} beyond the {} layers of config.json: correct num_hidden_layers",
        shards.source.string(), config.layer_count + mtp_layer_count_ - 1, config.layer_count);
}

void NameMap::add(const ShardSet& shards, const ModelConfig& config, uint32_t file,
                  uint32_t tensor) {
  const StoredTensor stored = shards.files[file].header().tensor(tensor);
  const std::string canonical = canonical_name(stored.name);
  if (is_ignorable(canonical, config)) {
    ++ignored_count_;
    return;
  }
  StoredSlice slice{file, tensor, 0, {stored.shape.begin(), stored.shape.end()}};
  std::string_view fused = canonical;
  strip_suffix(fused, ".weight");
  if (strip_suffix(fused, kFusedGateUp))
    return add_fused(shards, config, std::string(fused), false, slice);
  if (strip_suffix(fused, kFusedDown))
    return add_fused(shards, config, std::string(fused), true, slice);
  insert(shards, canonical, std::move(slice));
}

// transformers 5 holds gate_up_proj [E, 2*inner, hidden] (gate rows, then up rows) and
// down_proj [E, hidden, inner]: every expert's matrix is contiguous and out x in.
void NameMap::add_fused(const ShardSet& shards, const ModelConfig& config, const std::string& layer,
                        bool is_down, StoredSlice whole) {
  const MoeConfig& moe = config.moe;
  const int64_t hidden = config.hidden_dim;
  const std::vector<int64_t> expected =
      is_down ? std::vector<int64_t>{moe.expert_count, hidden, moe.inner_dim}
              : std::vector<int64_t>{moe.expert_count, 2 * moe.inner_dim, hidden};
  const StoredTensor stored = shards.files[whole.file].header().tensor(whole.tensor);
  if (whole.shape != expected)
    throw_model_error("{}: tensor {} has shape {} but config.json needs {} (experts, out, in)",
                      shards.files[whole.file].path().string(), printable_name(stored.name),
                      shape_text(whole.shape), shape_text(expected));
  const uint64_t matrix_bytes =
      static_cast<uint64_t>(moe.inner_dim) * hidden * stored.type->bits / 8;
  for (int64_t expert = 0; expert < moe.expert_count; ++expert) {
    const std::string prefix = fmt::format("{}.mlp.experts.{}.", layer, expert);
    if (is_down) {
      insert(shards, prefix + "down_proj.weight",
             {whole.file, whole.tensor, expert * matrix_bytes, {hidden, moe.inner_dim}});
      continue;
    }
    insert(shards, prefix + "gate_proj.weight",
           {whole.file, whole.tensor, 2 * expert * matrix_bytes, {moe.inner_dim, hidden}});
    insert(shards, prefix + "up_proj.weight",
           {whole.file, whole.tensor, (2 * expert + 1) * matrix_bytes, {moe.inner_dim, hidden}});
  }
}

void NameMap::insert(const ShardSet& shards, const std::string& canonical, StoredSlice slice) {
  const uint32_t file = slice.file;
  const uint32_t tensor = slice.tensor;
  const auto [entry, inserted] = slices_.emplace(canonical, std::move(slice));
  if (inserted) return;
  const StoredSlice& other = entry->second;
  throw_model_error("{}: tensor {} and {} of {} both stand for {}: keep one",
                    shards.files[file].path().string(),
                    printable_name(shards.files[file].header().tensor(tensor).name),
                    printable_name(shards.files[other.file].header().tensor(other.tensor).name),
                    shards.files[other.file].path().filename().string(), printable_name(canonical));
}

const StoredSlice* NameMap::find(std::string_view canonical) const {
  const auto found = slices_.find(canonical);
  return found == slices_.end() ? nullptr : &found->second;
}

}  // namespace foresail
