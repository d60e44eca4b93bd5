// Sharded checkpoints: what the index may say, and what the shards must hold.
#include "checkpoint/shard_index.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/weight_source.h"
#include "unit/checkpoint/editable_checkpoint.h"

namespace foresail {
namespace {

using testing::HasSubstr;
using testing::Not;

struct BadIndex {
  const char* name;
  std::string text;
  const char* message;
};

std::string one_shard(const std::string& file) {
  return json_text(Json({{"weight_map", {{"a", file}}}}));
}

class HostileIndex : public testing::TestWithParam<BadIndex> {};

TEST_P(HostileIndex, IsRefusedInOneLine) {
  const std::string message = error_of([] { parse_shard_index(GetParam().text, "index.json"); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("index.json: "));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileIndex,
    testing::Values(
        BadIndex{"Parent", one_shard("../x.safetensors"), "must be a plain file name"},
        BadIndex{"DotDot", one_shard(".."), "must be a plain file name"},
        BadIndex{"Dot", one_shard("."), "must be a plain file name"},
        BadIndex{"Empty", one_shard(""), "must be a plain file name"},
        BadIndex{"Absolute", one_shard("/etc/passwd"), "must be a plain file name"},
        BadIndex{"SubFolder", one_shard("sub/x.safetensors"), "must be a plain file name"},
        BadIndex{"Backslash", one_shard("..\\x"), "must be a plain file name"},
        BadIndex{"Newline", one_shard("a\nb"), "shard \"a\\x0ab\" of tensor a must be"},
        BadIndex{"Nul", one_shard(std::string("a\0b", 3)), "must be a plain file name"},
        BadIndex{"TooLong", one_shard(std::string(300, 'x')), "must be a plain file name"},
        BadIndex{"Number", R"({"weight_map":{"a":1}})", "gives no file name for a"},
        BadIndex{"NoMap", R"({"metadata":{}})", "weight_map must be an object"},
        BadIndex{"MapIsList", R"({"weight_map":[]})", "weight_map must be an object"},
        BadIndex{"MapIsEmpty", R"({"weight_map":{}})", "weight_map must be an object"},
        BadIndex{"NotObject", "[]", "weight_map must be an object"},
        BadIndex{"Duplicate", R"({"weight_map":{"a":"x","a":"y"}})", "repeats the key"},
        BadIndex{"ByteOrderMark", "\xEF\xBB\xBF{}", "byte order mark"},
        BadIndex{"CaseClash", R"({"weight_map":{"a":"Model.safetensors","b":"model.safetensors"}})",
                 "differ only in case"}),
    [](const auto& test) { return std::string(test.param.name); });

class ShardedCheckpoint : public testing::Test {
 protected:
  ShardedCheckpoint() : checkpoint_("g01_v3_yarn") {
    index_ = checkpoint_.write_two_shards(folder_.path());
  }
  void write_index() { folder_.write("model.safetensors.index.json", json_text(index_)); }
  std::string open_error() {
    const std::string message =
        error_of([&] { open_checkpoint(folder_.path(), read_model_config(folder_.path())); });
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }

  TempFolder folder_;
  EditableCheckpoint checkpoint_;
  Json index_;
};

TEST_F(ShardedCheckpoint, OpensThoughTotalSizeIsWrong) {
  EXPECT_EQ(open_error(), "");
  index_.erase("metadata");
  write_index();
  EXPECT_EQ(open_error(), "");
  folder_.write("consolidated.safetensors", "not listed, not read");
  EXPECT_EQ(open_error(), "");
}

TEST_F(ShardedCheckpoint, MissingShard) {
  std::filesystem::remove(folder_.path() / "b.safetensors");
  EXPECT_THAT(open_error(),
              HasSubstr("model.safetensors.index.json: shard b.safetensors is missing"));
}

TEST_F(ShardedCheckpoint, ShardIsAFolder) {
  std::filesystem::remove(folder_.path() / "b.safetensors");
  std::filesystem::create_directory(folder_.path() / "b.safetensors");
  EXPECT_THAT(open_error(), HasSubstr("b.safetensors is not a regular file"));
}

TEST_F(ShardedCheckpoint, ShardIsALinkLoop) {
  std::filesystem::remove(folder_.path() / "b.safetensors");
  std::filesystem::create_symlink("c.safetensors", folder_.path() / "b.safetensors");
  std::filesystem::create_symlink("b.safetensors", folder_.path() / "c.safetensors");
  EXPECT_THAT(open_error(), HasSubstr("cannot open"));
}

TEST_F(ShardedCheckpoint, LinksAreFollowed) {
  const TempFolder blobs;
  std::filesystem::copy(folder_.path() / "b.safetensors", blobs.path() / "blob");
  std::filesystem::remove(folder_.path() / "b.safetensors");
  std::filesystem::create_symlink(blobs.path() / "blob", folder_.path() / "b.safetensors");
  EXPECT_EQ(open_error(), "");
}

TEST_F(ShardedCheckpoint, TruncatedShard) {
  std::filesystem::resize_file(folder_.path() / "b.safetensors",
                               std::filesystem::file_size(folder_.path() / "b.safetensors") - 1);
  EXPECT_THAT(open_error(), HasSubstr("b.safetensors: the tensors need"));
}

TEST_F(ShardedCheckpoint, TensorAbsentFromItsShard) {
  index_["weight_map"]["model.ghost.weight"] = "a.safetensors";
  write_index();
  EXPECT_THAT(open_error(), HasSubstr("a.safetensors: tensor model.ghost.weight is absent though"));
}

TEST_F(ShardedCheckpoint, TensorInAnotherShardThanListed) {
  auto& file = index_["weight_map"]["model.norm.weight"];
  file = file == "a.safetensors" ? "b.safetensors" : "a.safetensors";
  write_index();
  EXPECT_THAT(open_error(), HasSubstr("tensor model.norm.weight is here but the index says"));
}

TEST_F(ShardedCheckpoint, TensorInTwoShards) {
  std::map<std::string, EditableTensor> part;
  part["model.norm.weight"] = checkpoint_.tensors["model.norm.weight"];
  part["extra"] = checkpoint_.tensors["model.norm.weight"];
  EditableCheckpoint::write_shard(folder_.path() / "c.safetensors", part);
  index_["weight_map"]["extra"] = "c.safetensors";
  write_index();
  EXPECT_THAT(open_error(),
              HasSubstr("c.safetensors: tensor model.norm.weight is here but the index says"));
}

TEST_F(ShardedCheckpoint, TensorNotListed) {
  index_["weight_map"].erase("model.norm.weight");
  write_index();
  EXPECT_THAT(open_error(),
              HasSubstr("tensor model.norm.weight is not in model.safetensors.index.json"));
}

TEST_F(ShardedCheckpoint, ListedShardWithNothingTheModelNeeds) {
  std::map<std::string, EditableTensor> part;
  part["model.layers.0.self_attn.rotary_emb.inv_freq"] = checkpoint_.tensors["model.norm.weight"];
  EditableCheckpoint::write_shard(folder_.path() / "c.safetensors", part);
  index_["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = "c.safetensors";
  write_index();
  EXPECT_EQ(open_error(), "");
  part["stray"] = part.begin()->second;
  EditableCheckpoint::write_shard(folder_.path() / "c.safetensors", part);
  index_["weight_map"]["stray"] = "c.safetensors";
  write_index();
  EXPECT_THAT(open_error(), HasSubstr("c.safetensors: tensor stray does not belong"));
}

TEST_F(ShardedCheckpoint, NoFilesAtAll) {
  for (const char* name : {"a.safetensors", "b.safetensors", "model.safetensors.index.json"})
    std::filesystem::remove(folder_.path() / name);
  EXPECT_THAT(open_error(),
              HasSubstr("neither model.safetensors nor model.safetensors.index.json is there"));
}

}  // namespace
}  // namespace foresail
