#include "trainer/hf/rope_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/config_cases.h"

namespace distill::hf {
namespace {

using ::testing::HasSubstr;

TEST(RopeKeysTest, BothSpellingsOfLlama3ScalingAgree) {
  const char* scaling = R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192)";
  const auto old_spelling = read_with(absl::StrCat(R"({"rope_scaling": )", scaling, "}}"));
  const auto new_spelling = read_with(absl::StrCat(
      R"({"rope_theta": "REMOVED", "torch_dtype": "REMOVED", "dtype": "float16", "rope_parameters": )", scaling,
      R"(, "rope_theta": 500000.0}})"));
  for (const auto& config : {old_spelling, new_spelling}) {
    ASSERT_TRUE(config.ropes[0].llama3);
    EXPECT_EQ(config.ropes[0].llama3->factor, 32.0);
    EXPECT_EQ(config.ropes[0].llama3->original_max_position_embeddings, 8192);
    EXPECT_EQ(config.ropes[0].theta, 500000.0);
  }
  EXPECT_EQ(new_spelling.dtype, "float16");
}

TEST(RopeKeysTest, LinearScalingAndTheOldNameOfItsType) {
  const auto config = read_with(R"({"rope_scaling": {"type": "linear", "factor": 2.5}})");
  EXPECT_EQ(config.ropes[0].linear_factor, 2.5);
}

// As transformers computes EXAONE 4, whose layers of full attention have no RoPE if others have a window.
TEST(RopeKeysTest, LayersMayDifferInTheirRope) {
  const std::string keys = R"({"model_type": "exaone4", "num_hidden_layers": 8)";
  const auto windows = read_with(keys + R"(, "sliding_window_pattern": 4})");
  EXPECT_EQ(windows.layers, (std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(windows.kinds[0].attention.window, 4096);
  EXPECT_TRUE(windows.kinds[0].attention.rope && !windows.kinds[1].attention.rope);
  EXPECT_FALSE(windows.kinds[1].attention.window);
  const auto full = read_with(keys + R"(, "sliding_window": null, "sliding_window_pattern": 4})");
  EXPECT_EQ(full.kinds.size(), 1U);
  EXPECT_TRUE(full.kinds[0].attention.rope && !full.kinds[0].attention.window);
}

// rope_theta of a family with two ropes is that of full_attention alone, for transformers.
TEST(RopeKeysTest, RopesByLayerTypeAreReadAsTransformersReadsThem) {
  Notes notes;
  const auto config = read_with(
      R"({"model_type": "olmo3", "rope_theta": 7.0, "num_hidden_layers": 4,
          "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}})",
      &notes);
  ASSERT_EQ(config.ropes.size(), 2U);
  EXPECT_EQ(config.ropes[0].theta, 7);
  EXPECT_TRUE(config.ropes[0].yarn);
  EXPECT_EQ(config.ropes[1].theta, 500000);
  EXPECT_FALSE(config.ropes[1].yarn);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0].text, HasSubstr("that of full_attention alone"));
}

TEST(RopeKeysTest, PhiRotatesAPartOfEachHead) {
  const auto config = read_with(
      R"({"model_type": "phi3", "head_dim": 16, "partial_rotary_factor": 0.25, "max_position_embeddings": 16384,
          "sliding_window": 262144,
          "rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}})");
  EXPECT_EQ(config.ropes[0].dim, 4);
  EXPECT_TRUE(config.kinds[0].fused_tensors);
  ASSERT_TRUE(config.ropes[0].longrope);
  EXPECT_EQ(config.ropes[0].longrope->original_max_position_embeddings, 4096);
  EXPECT_DOUBLE_EQ(config.ropes[0].attention_factor, std::sqrt(1 + std::log(4) / std::log(4096)));
}

TEST(RopeKeysTest, ReadsYarn) {
  const auto config = read_with(
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
          "beta_fast": 16, "beta_slow": null}})");
  const auto& yarn = config.ropes[0].yarn;
  ASSERT_TRUE(yarn);
  EXPECT_EQ(yarn->factor, 4);
  EXPECT_EQ(yarn->original_max_position_embeddings, 32768);
  EXPECT_EQ(yarn->beta_fast, 16);
  EXPECT_EQ(yarn->beta_slow, 1);
  EXPECT_DOUBLE_EQ(config.ropes[0].attention_factor, 0.1 * std::log(4) + 1);
  const auto scaled =
      read_with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8}})");
  EXPECT_EQ(scaled.ropes[0].yarn->original_max_position_embeddings, 131072);
  EXPECT_DOUBLE_EQ(scaled.ropes[0].attention_factor, (0.1 * std::log(4) + 1) / (0.08 * std::log(4) + 1));
}

struct Rope {
  const char* keys;
  double theta;
  double linear_factor;
  const char* note; // nullptr: none
};

TEST(RopeKeysTest, RopeInTwoPlacesIsReadAsTransformersReadsIt) {
  const std::vector<Rope> cases{
      {R"({"rope_scaling": null, "rope_parameters": {"rope_theta": 7.0}})", 7, 1, "rope_theta 500000.0 is not used"},
      {R"({"rope_theta": "REMOVED", "rope_scaling": {}, "rope_parameters": {"rope_theta": 7.0}})", 7, 1,
       "rope_scaling is empty ({})"},
      {R"({"rope_theta": "REMOVED", "rope_scaling": false, "rope_parameters": {"rope_theta": 7.0}})", 7, 1,
       "rope_scaling is empty (false)"},
      {R"({"rope_theta": 7.0, "rope_scaling": {}})", 7, 1, nullptr},
      {R"({"rope_theta": "REMOVED", "rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 7.0}})",
       10000, 1, "in the place of rope_parameters"},
      {R"({"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 7.0}})",
       5, 2, "in the place of rope_parameters"},
      {R"({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 7.0}})", 7, 1, nullptr},
      {R"({"rope_theta": 7.0, "rope_parameters": {}})", 7, 1, nullptr},
  };
  for (const Rope& c : cases) {
    Notes notes;
    const auto config = parse_with(c.keys, &notes);
    ASSERT_TRUE(config.ok()) << c.keys << config.status();
    EXPECT_EQ(config->ropes[0].theta, c.theta) << c.keys;
    EXPECT_EQ(config->ropes[0].linear_factor, c.linear_factor) << c.keys;
    ASSERT_EQ(notes.size(), c.note ? 1U : 0U) << c.keys;
    if (c.note != nullptr) {
      EXPECT_THAT(notes[0].text, HasSubstr(c.note)) << c.keys;
    }
  }
}

} // namespace
} // namespace distill::hf
