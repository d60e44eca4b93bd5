#include "checkpoint/shard_index.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/foreign_formats.h"
#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxIndexBytes = 256u << 20;
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// A shard must lie in the model's own folder, whatever the index says.
bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20;
  });
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

void check_case_clash(const std::vector<std::string>& shards, const std::string& where) {
  std::map<std::string, std::string> seen;
  for (const std::string& shard : shards) {
    const auto [entry, inserted] = seen.emplace(lower_case(shard), shard);
    if (!inserted)
      throw_model_error("{}: shards {} and {} differ only in case: rename one", where,
                        entry->second, shard);
  }
}

bool lists(const ShardIndex& index, std::string_view name, size_t* shard) {
  const auto found =
      std::lower_bound(index.weight_map.begin(), index.weight_map.end(), name,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  if (found == index.weight_map.end() || found->first != name) return false;
  *shard = found->second;
  return true;
}

void check_headers(const ShardIndex& index, const ShardSet& set) {
  for (size_t shard = 0; shard < set.files.size(); ++shard) {
    const SafetensorsHeader& header = set.files[shard].header();
    for (size_t i = 0; i < header.tensor_count(); ++i) {
      const std::string_view name = header.tensor(i).name;
      size_t listed = 0;
      if (!lists(index, name, &listed))
        throw_model_error("{}: tensor {} is not in {}: the index belongs to other files",
                          set.files[shard].path().string(), printable_name(name), kIndexName);
      if (listed != shard)
        throw_model_error(
            "{}: tensor {} is here but the index says {}: it must be in one shard only",
            set.files[shard].path().string(), printable_name(name), index.shards[listed]);
    }
  }
  for (const auto& [name, shard] : index.weight_map)
    if (!set.files[shard].header().find(name))
      throw_model_error("{}: tensor {} is absent though {} says it is here",
                        set.files[shard].path().string(), printable_name(name), kIndexName);
}

}  // namespace

ShardIndex parse_shard_index(const std::string& text, const std::string& where) {
  const Result<Json> parsed = parse_json(text, {.max_bytes = kMaxIndexBytes});
  if (!parsed) throw_model_error("{}: {}", where, parsed.error().message);
  const auto map = parsed->is_object() ? parsed->find("weight_map") : parsed->end();
  if (!parsed->is_object() || map == parsed->end() || !map->is_object() || map->empty())
    throw_model_error("{}: weight_map must be an object of tensor names and file names", where);

  ShardIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      throw_model_error("{}: weight_map gives no file name for {}", where, printable_name(name));
    const auto& shard = file.get_ref<const std::string&>();
    if (!is_plain_file_name(shard))
      throw_model_error(
          "{}: shard \"{}\" of tensor {} must be a plain file name in the same folder", where,
          printable_name(shard), printable_name(name));
    index.shards.push_back(shard);
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  check_case_clash(index.shards, where);
  for (const auto& [name, file] : map->items()) {
    const auto& shard = file.get_ref<const std::string&>();
    const auto place = std::lower_bound(index.shards.begin(), index.shards.end(), shard);
    index.weight_map.emplace_back(name, static_cast<size_t>(place - index.shards.begin()));
  }
  return index;  // nlohmann's objects iterate in key order, so weight_map is sorted
}

ShardSet open_shards(const std::filesystem::path& model_dir) {
  ShardSet set;
  const std::filesystem::path single = model_dir / kSingleName;
  const std::filesystem::path index_path = model_dir / kIndexName;
  if (is_present(single)) {
    set.source = single;
    set.files.emplace_back(single);
    return set;
  }
  if (!is_present(index_path)) {
    const std::string foreign = foreign_format(model_dir, kSingleName);
    if (!foreign.empty()) throw_model_error("{}: {}", model_dir.string(), foreign);
    throw_model_error("{}: neither {} nor {} is there: give a folder with a safetensors checkpoint",
                      model_dir.string(), kSingleName, kIndexName);
  }
  set.source = index_path;
  const ShardIndex index =
      parse_shard_index(read_text_file(index_path, kMaxIndexBytes), index_path.string());
  for (const std::string& shard : index.shards) {
    const std::filesystem::path path = model_dir / shard;
    if (!is_present(path))
      throw_model_error("{}: shard {} is missing: download it", index_path.string(), shard);
    set.files.emplace_back(path);
  }
  check_headers(index, set);
  return set;
}

}  // namespace foresail
