#include "trainer/config/by_block.h"

#include <gmock/gmock.h>

namespace distill::config {
namespace {

using models::ActivationPolicy;
using models::StatePlace;
using enum models::ActivationPolicy;
using Activation = ByBlock<ActivationPolicy>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByBlock, ReadsAutoAPolicyForAllBlocksAndAList) {
  EXPECT_EQ(parse_by_block<ActivationPolicy>("auto"), Activation(Automatic{}));
  EXPECT_EQ(parse_by_block<ActivationPolicy>("offload_input"), Activation(kOffloadInput));
  EXPECT_EQ(
      parse_by_block<ActivationPolicy>("recompute*2, keep"), (Activation(std::vector{kRecompute, kRecompute, kKeep})));
  EXPECT_EQ(parse_by_block<ActivationPolicy>("keep*1"), Activation(std::vector{kKeep}))
      << "a model of one block, not of any number";
}

TEST(ByBlock, OtherTextsAreNone) {
  for (const char* text :
       {"", "kep", "Keep", "keep*", "keep*0", "keep*-1", "keep*x", "keep*2*2", "keep,", ",keep", "auto,keep", "auto*2",
        "keep*4097", "keep*4096,keep", "keep*99999999999999999999"}) {
    EXPECT_EQ(parse_by_block<ActivationPolicy>(text), std::nullopt) << text;
  }
  EXPECT_TRUE(parse_by_block<ActivationPolicy>("keep*4095,keep").has_value());
}

TEST(ByBlock, TextReadsBackEqualAndIsShort) {
  for (const char* text :
       {"auto", "keep", "recompute", "keep*1", "offload*3", "recompute*24,keep*8", "keep,offload,keep"}) {
    EXPECT_EQ(by_block_text(*parse_by_block<ActivationPolicy>(text)), text);
  }
  EXPECT_EQ(by_block_text(*parse_by_block<ActivationPolicy>("keep,keep ,recompute*1")), "keep*2,recompute");
}

TEST(ByBlock, PoliciesOfBlocks) {
  EXPECT_THAT(
      *policies_of_blocks(Activation(kRecompute), 3, "memory.activation"),
      ElementsAre(kRecompute, kRecompute, kRecompute));
  EXPECT_THAT(
      *policies_of_blocks(Activation(std::vector{kKeep, kOffload}), 2, "memory.activation"),
      ElementsAre(kKeep, kOffload));
  EXPECT_THAT(*policies_of_blocks(Activation(Automatic{}), 3, "memory.activation"), ElementsAre());
  const auto wrong = policies_of_blocks(Activation(std::vector{kKeep, kKeep, kOffload}), 2, "memory.activation");
  EXPECT_THAT(
      std::string(wrong.status().message()),
      HasSubstr(
          "memory.activation: expected one of keep, recompute, offload, offload_input for each of the student's 2 blocks, "
          "found 3 in \"keep*2,offload\""));
}

TEST(ByBlock, TheSyntaxNamesEveryPolicy) {
  EXPECT_EQ(
      by_block_syntax<ActivationPolicy>(),
      "auto, keep, recompute, offload, offload_input, or a list of them such as recompute*24,keep*8");
}

TEST(ByBlock, PlacesOfTheOptimizersStateAreReadTheSameWay) {
  EXPECT_EQ(parse_by_block<StatePlace>("auto"), ByBlock<StatePlace>(Automatic{}));
  EXPECT_EQ(parse_by_block<StatePlace>("host"), ByBlock<StatePlace>(StatePlace::kHost));
  EXPECT_EQ(by_block_text(*parse_by_block<StatePlace>("host,host,device")), "host*2,device");
  EXPECT_EQ(parse_by_block<StatePlace>("disk"), std::nullopt);
  EXPECT_EQ(by_block_syntax<StatePlace>(), "auto, device, host, cpu, or a list of them such as host*24,device*8");
}

} // namespace
} // namespace distill::config
