#include "apps/field_names.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

TEST(FieldNames, AFieldBecomesItsFlag) {
  EXPECT_EQ(with_flags("options.page_size 17: use 1, 16, 32 or 64"),
            "--page-size 17: use 1, 16, 32 or 64");
  EXPECT_EQ(with_flags("lower options.max_total_tokens or options.context_length."),
            "lower --max-total-tokens or --context-length.");
  EXPECT_EQ(with_flags("(lower request.max_tokens to 5)"), "(lower --max-tokens to 5)");
  EXPECT_EQ(with_flags("options.speculative.steps 99"), "--speculative-num-steps 99");
  EXPECT_EQ(with_flags("options.model_path"), "MODEL");
  EXPECT_EQ(with_flags("options.kv_cache_scale: with options.kv_cache_dtype"),
            "--kv-cache-scale: with --kv-cache-dtype");
}

TEST(FieldNames, WhatIsNoFieldStays) {
  for (const char* text :
       {"", "no such folder", "options.", "options.page_sizes", "options.nothing",
        "my_options.dtype", "/tmp/options.dtype", "max_tokens 0 is below 1"})
    EXPECT_EQ(with_flags(text), text);
}

}  // namespace
}  // namespace foresail
