#include "trainer/config/suggest.h"

#include <gtest/gtest.h>

namespace distill::config {
namespace {

TEST(EditDistance, CountsASwapOfNeighboursAsOne) {
  EXPECT_EQ(edit_distance("beta", "beta", 9), 0);
  EXPECT_EQ(edit_distance("", "abc", 9), 3);
  EXPECT_EQ(edit_distance("betta", "beta", 9), 1);
  EXPECT_EQ(edit_distance("ebta", "beta", 9), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting", 9), 3);
}

TEST(EditDistance, IsExactUpToItsLimitAndAboveItBeyond) {
  const std::vector<std::string> names{
      "",           "lr",          "seq_len",     "sqe_len",   "seqlen",     "hard_weight",
      "har_dweigt", "soft_weight", "temperature", "tmperatre", "max_length", "zzzzzz"};
  for (const std::string& a : names) {
    for (const std::string& b : names) {
      const size_t exact = edit_distance(a, b, 64);
      EXPECT_EQ(exact, edit_distance(b, a, 64)) << a << " " << b;
      for (size_t limit = 0; limit < 12; ++limit) {
        const size_t found = edit_distance(a, b, limit);
        EXPECT_TRUE(exact <= limit ? found == exact : found > limit) << a << " " << b << " " << limit;
      }
    }
  }
}

struct Case {
  const char* section;
  const char* name;
  const char* closest;
};

class ClosestKey : public ::testing::TestWithParam<Case> {};

TEST_P(ClosestKey, IsWhatTheAuthorMeant) {
  EXPECT_EQ(closest_key(GetParam().section, GetParam().name), GetParam().closest);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ClosestKey,
    ::testing::Values(
        Case{"loss", "betta", "loss.beta"}, Case{"loss", "Temperature", "loss.temperature"},
        Case{"loss", "hard-weight", "loss.hard_weight"}, Case{"loss", "temprature", "loss.temperature"},
        Case{"", "lr", "optimizer.lr"}, Case{"train", "lr", "optimizer.lr"}, Case{"", "learning_rate", "optimizer.lr"},
        Case{"train", "seq_len", "data.seq_len"}, Case{"data", "max_length", "data.seq_len"},
        Case{"train", "gradient_accumulation_steps", "train.global_batch_size"}, Case{"", "optimiser", "optimizer"},
        Case{"", "output_dir", "run.dir"}, Case{"", "num_train_epochs", "train.epochs"},
        Case{"optimizer", "weight_deacy", "optimizer.weight_decay"}, Case{"loss", "tmp", ""}, Case{"", "zzzzzz", ""}));

TEST(ClosestName, KnowsTheNamesThatOtherToolsUse) {
  EXPECT_EQ(closest_name("bf16", std::vector<std::string>{"auto", "float32", "bfloat16"}), "bfloat16");
  EXPECT_EQ(closest_name("forward-kl", std::vector<std::string>{"jsd", "forward_kl", "reverse_kl"}), "forward_kl");
  EXPECT_EQ(closest_name("cosin", std::vector<std::string>{"constant", "cosine"}), "cosine");
  EXPECT_EQ(closest_name("polynomial", std::vector<std::string>{"constant", "cosine"}), "");
}

} // namespace
} // namespace distill::config
