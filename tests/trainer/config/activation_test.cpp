#include "trainer/config/activation.h"

#include <gmock/gmock.h>

namespace distill::config {
namespace {

using enum models::ActivationPolicy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Activation, ReadsAutoAPolicyForAllBlocksAndAList) {
  EXPECT_EQ(parse_activation("auto"), Activation(AutomaticPolicies{}));
  EXPECT_EQ(parse_activation("offload_input"), Activation(kOffloadInput));
  EXPECT_EQ(parse_activation("recompute*2, keep"), (Activation(std::vector{kRecompute, kRecompute, kKeep})));
  EXPECT_EQ(parse_activation("keep*1"), Activation(std::vector{kKeep})) << "a model of one block, not of any number";
}

TEST(Activation, OtherTextsAreNone) {
  for (const char* text :
       {"", "kep", "Keep", "keep*", "keep*0", "keep*-1", "keep*x", "keep*2*2", "keep,", ",keep", "auto,keep", "auto*2",
        "keep*4097", "keep*4096,keep", "keep*99999999999999999999"}) {
    EXPECT_EQ(parse_activation(text), std::nullopt) << text;
  }
  EXPECT_TRUE(parse_activation("keep*4095,keep").has_value());
}

TEST(Activation, TextReadsBackEqualAndIsShort) {
  for (const char* text :
       {"auto", "keep", "recompute", "keep*1", "offload*3", "recompute*24,keep*8", "keep,offload,keep"}) {
    EXPECT_EQ(activation_text(*parse_activation(text)), text);
  }
  EXPECT_EQ(activation_text(*parse_activation("keep,keep ,recompute*1")), "keep*2,recompute");
}

TEST(Activation, PoliciesOfBlocks) {
  EXPECT_THAT(*policies_of_blocks(kRecompute, 3), ElementsAre(kRecompute, kRecompute, kRecompute));
  EXPECT_THAT(*policies_of_blocks(std::vector{kKeep, kOffload}, 2), ElementsAre(kKeep, kOffload));
  EXPECT_THAT(*policies_of_blocks(AutomaticPolicies{}, 3), ElementsAre());
  const auto wrong = policies_of_blocks(std::vector{kKeep, kKeep, kOffload}, 2);
  EXPECT_THAT(
      std::string(wrong.status().message()),
      HasSubstr("memory.activation: expected policies for the student's 2 blocks, found 3 in \"keep*2,offload\""));
}

TEST(Activation, TheSyntaxNamesEveryPolicy) {
  EXPECT_EQ(
      activation_syntax(),
      "auto, keep, recompute, offload, offload_input, or a list of them such as recompute*24,keep*8");
}

} // namespace
} // namespace distill::config
