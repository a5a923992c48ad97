#include "trainer/models/model_config.h"

#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"

namespace distill::models {
namespace {

using testing::HasSubstr;

TEST(ModelConfigTest, WhatNothingComputesIsNamed) {
  const auto message = [](const auto& change) {
    ModelConfig config = llama_like({});
    change(config);
    return std::string(check_computable(config).message());
  };
  EXPECT_EQ(message([](ModelConfig&) {}), "");
  EXPECT_THAT(message([](ModelConfig& c) { c.kinds[0].attention.keys_are_values = true; }), HasSubstr("without norms"));
}

TEST(ModelConfigTest, AttendedTokensAreTheMeanOverTheQueries) {
  for (const int64_t window : {1, 3, 10, 11}) {
    AttentionSpec spec;
    spec.window = window;
    double sum = 0; // of continuous time, in which a token has half of itself before it
    for (int64_t token = 0; token < 10; ++token) {
      sum += token < window ? static_cast<double>(token) + 0.5 : static_cast<double>(window);
    }
    EXPECT_DOUBLE_EQ(spec.attended_tokens(10), sum / 10) << window;
  }
  EXPECT_EQ(AttentionSpec().attended_tokens(10), 5);
}

} // namespace
} // namespace distill::models
