#include "trainer/hf/text_names.h"

#include <gmock/gmock.h>

namespace distill::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(TextNamesTest, TheDecoderAndTheHeadAreFoundByTheirPrefixes) {
  struct Case {
    std::vector<std::string_view> names;
    const char* decoder;
    const char* head;
  };
  const Case cases[] = {
      {{"lm_head.weight", "model.layers.0.a", "model.norm.weight", "model.visual.norm.weight"}, "model.", "lm_head."},
      {{"layers.0.a", "norm.weight"}, "model.", "lm_head."}, // saved from the bare decoder
      {{"model.language_model.layers.0.a", "model.visual.norm.weight", "mtp.layers.0.a"},
       "model.language_model.",
       "lm_head."},
      {{"language_model.lm_head.weight", "language_model.model.norm.weight", "vision_tower.layers.0.a"},
       "language_model.model.",
       "language_model.lm_head."},
      {{"language_model.embed_tokens.weight", "vision_tower.layers.0.a"}, "language_model.", "lm_head."},
      {{"vision_tower.layers.0.a"}, "model.", "lm_head."},
  };
  for (const Case& each : cases) {
    const auto found = find_text_names(each.names, "folder").value();
    EXPECT_EQ(found.decoder, each.decoder);
    EXPECT_EQ(found.head, each.head);
  }
}

TEST(TextNamesTest, TwoTextModelsAreAnError) {
  const auto two = find_text_names({"language_model.model.norm.weight", "model.language_model.layers.0.a"}, "folder");
  EXPECT_THAT(
      std::string(two.status().message()),
      AllOf(
          HasSubstr("folder: one decoder"), HasSubstr("model.language_model.layers.0.a"),
          HasSubstr("language_model.model.norm.weight")));
  const auto heads = find_text_names({"language_model.lm_head.weight", "lm_head.weight", "model.layers.0.a"}, "folder");
  EXPECT_THAT(std::string(heads.status().message()), HasSubstr("one head"));
}

TEST(TextNamesTest, NamesAreTranslatedBothWays) {
  const TextNames names{"language_model.model.", "language_model.lm_head."};
  EXPECT_EQ(names.stored("model.layers.1.x"), "language_model.model.layers.1.x");
  EXPECT_EQ(names.stored("lm_head.weight"), "language_model.lm_head.weight");
  EXPECT_THAT(names.own("language_model.model.layers.1.x"), Optional(std::string("model.layers.1.x")));
  EXPECT_THAT(names.own("language_model.lm_head.weight"), Optional(std::string("lm_head.weight")));
  EXPECT_EQ(names.own("vision_tower.layers.1.x"), std::nullopt);
  EXPECT_EQ(names.own("model.layers.1.x"), std::nullopt);
  EXPECT_THAT(TextNames().own("layers.1.x"), Optional(std::string("model.layers.1.x")));
}

TEST(TextNamesTest, WhatTheConfigurationDoesNotReachIsOutside) {
  models::ModelConfig config;
  config.set_layers({}, 2);
  for (const char* inside :
       {"lm_head.bias", "model.norm.weight", "model.embed_tokens.weight", "model.layers.1.x.weight"}) {
    EXPECT_TRUE(is_inside(inside, config)) << inside;
  }
  for (const char* outside : {"model.layers.2.x.weight", "model.visual.norm.weight", "score.weight", "norm.weight"}) {
    EXPECT_FALSE(is_inside(outside, config)) << outside;
  }
}

} // namespace
} // namespace distill::hf
