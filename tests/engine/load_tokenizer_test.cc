#include "engine/load_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"

namespace foresail {
namespace {

TEST(LoadTokenizer, RefusesOneOfAnotherModel) {
  namespace fs = std::filesystem;
  const fs::path root = FORESAIL_SOURCE_DIR;
  const fs::path mixed = fs::path(testing::TempDir()) / "mixed_model";
  fs::create_directories(mixed);
  const auto overwrite = fs::copy_options::overwrite_existing;
  fs::copy_file(root / "tests/goldens/g01_v3_yarn/config.json", mixed / "config.json", overwrite);
  fs::copy_file(root / "models/tales/tokenizer.json", mixed / "tokenizer.json", overwrite);
  try {
    load_tokenizer(mixed);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_NE(std::string(error.what()).find("ids up to 8191 but config.json has vocab_size 320"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NE(load_tokenizer(root / "models/tales"), nullptr);
}

}  // namespace
}  // namespace foresail
