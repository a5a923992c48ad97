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
  EXPECT_THAT(message([](ModelConfig& c) { c.embedding_scale = 4; }), HasSubstr("multiplied by 4"));
  EXPECT_THAT(
      message([](ModelConfig& c) { c.kinds[0].mlp_norms.before->offset = 1; }),
      HasSubstr("weight + 1 (post_attention_layernorm)"));
  EXPECT_THAT(message([](ModelConfig& c) { c.kinds[0].attention.softcap = 50; }), HasSubstr("capped at 50"));
  EXPECT_THAT(message([](ModelConfig& c) { c.kinds[0].attention.rope.reset(); }), HasSubstr("without RoPE"));
  EXPECT_THAT(message([](ModelConfig& c) { c.ropes[0].dim = 2; }), HasSubstr("RoPE of 2 of the 8 elements"));
}

TEST(ModelConfigTest, TheShortestWindowOfTheLayersLimitsSequences) {
  ModelConfig config = llama_like({.max_positions = 64});
  EXPECT_EQ(longest_sequence(config), 64);
  config.kinds.push_back(config.kinds[0]);
  config.kinds[1].attention.window = 16;
  EXPECT_EQ(longest_sequence(config), 64); // no layer is of that kind
  config.layers = {0, 1};
  EXPECT_EQ(longest_sequence(config), 16);
  EXPECT_THAT(check_sequence_length(config, 17).message(), HasSubstr("sliding_window (16)"));
}

} // namespace
} // namespace distill::models
