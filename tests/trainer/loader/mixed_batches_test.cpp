#include "trainer/loader/mixed_batches.h"

#include <gmock/gmock.h>

#include "tests/data/fixtures.h"

namespace distill::trainer {
namespace {

using data::testing::get;

class MixedBatchesTest : public data::testing::FolderTest {
 protected:
  std::shared_ptr<data::Dataset> open(const std::string& name, uint32_t first_id) {
    data::testing::write_shard(
        path(name), data::testing::spec(4000), data::testing::distinct_documents({8, 8, 8, 8, 8, 8, 8}, first_id));
    data::DataOptions options;
    options.sources.push_back({path(name), 1.0});
    options.seq_len = 8;
    return data::testing::open(options);
  }
};

TEST_F(MixedBatchesTest, EachStepHasItsSequencesOfTheRoundAndThenThoseOfTheTrainingData) {
  const auto round = open("round.dtok", 1), train = open("train.dtok", 1000);
  const MixedBatches batches(round, train, {.sequences = 5, .on_policy = 2, .first_train = 4});
  for (int64_t step = 0; step < 3; ++step) {
    const auto own = batches.batch(step * 5, 2), others = batches.batch(step * 5 + 2, 3);
    ASSERT_TRUE(own.ok() && others.ok());
    EXPECT_TRUE(own->on_policy);
    EXPECT_FALSE(others->on_policy);
    EXPECT_TRUE(at::equal(own->tokens_BS, get(*round, step * 2, 2).tokens_BS));
    EXPECT_TRUE(at::equal(others->tokens_BS, get(*train, 4 + step * 3, 3).tokens_BS));
  }
  EXPECT_ANY_THROW(batches.batch(1, 2).IgnoreError()); // of two kinds
}

} // namespace
} // namespace distill::trainer
