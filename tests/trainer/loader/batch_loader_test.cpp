#include "trainer/loader/batch_loader.h"

#include <gmock/gmock.h>

#include "tests/data/fixtures.h"

namespace distill::trainer {
namespace {

class BatchLoaderTest : public data::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    shard_ = data::testing::write_shard(
        path("a.dtok"), data::testing::spec(4000), data::testing::distinct_documents({40, 40, 40, 40}));
    data::DataOptions options;
    options.sources.push_back({shard_, 1.0});
    options.seq_len = 8;
    dataset_ = data::testing::open(options);
  }
  BatchLoader loader(data::Prefetcher& prefetcher, BatchLoader::Hooks hooks) {
    return BatchLoader(mesh_, prefetcher, /*micro_batches=*/3, std::move(hooks));
  }

  sharding::Mesh mesh_; // one process
  std::string shard_;
  std::shared_ptr<data::Dataset> dataset_;
};

TEST_F(BatchLoaderTest, BringsAGlobalBatchInOrderWithItsTargetsCounted) {
  data::Prefetcher prefetcher(dataset_, data::BatchSchedule{0, 2, 2});
  BatchLoader batches = loader(prefetcher, {.asked_to_stop = [] { return false; }});
  for (int64_t step = 0; step < 2; ++step) {
    const auto batch = batches.next();
    ASSERT_TRUE(batch.ok() && batch->has_value()) << batch.status();
    ASSERT_EQ((*batch)->micro_batches.size(), 3U);
    int64_t valid = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const data::Batch expected = data::testing::get(*dataset_, step * 6 + i * 2, 2);
      EXPECT_TRUE(at::equal((*batch)->micro_batches[i].tokens_BS, expected.tokens_BS));
      valid += expected.valid_tokens;
    }
    EXPECT_EQ((*batch)->valid_tokens, valid);
  }
}

TEST_F(BatchLoaderTest, AStopComesInsteadOfABatch) {
  data::Prefetcher prefetcher(dataset_, data::BatchSchedule{0, 2, 2});
  bool stop = false;
  BatchLoader batches = loader(prefetcher, {.asked_to_stop = [&stop] { return stop; }});
  EXPECT_TRUE(batches.next()->has_value());
  stop = true;
  const auto batch = batches.next();
  ASSERT_TRUE(batch.ok());
  EXPECT_FALSE(batch->has_value());
}

TEST_F(BatchLoaderTest, DataThatEndsIsAnError) {
  data::Prefetcher prefetcher(dataset_, data::BatchSchedule{0, 2, 2, /*batches=*/4});
  BatchLoader batches = loader(prefetcher, {.asked_to_stop = [] { return false; }});
  EXPECT_TRUE(batches.next()->has_value());
  EXPECT_EQ(batches.next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(BatchLoaderTest, TheStateOfWritersTravelsWithEachBatchAndMayEndTheRun) {
  data::Prefetcher prefetcher(dataset_, data::BatchSchedule{0, 2, 2});
  BatchLoader::Hooks hooks{.asked_to_stop = [] { return false; }};
  sharding::WritingRanks own{.writing = 1};
  std::vector<std::pair<int64_t, int64_t>> seen;
  hooks.own_writing = [&] { return own; };
  hooks.take_writing = [&](const sharding::WritingRanks& ranks) {
    seen.emplace_back(ranks.writing, ranks.failed);
    return ranks.failed > 0 ? absl::DataLossError("the disk is gone") : absl::OkStatus();
  };
  BatchLoader batches = loader(prefetcher, std::move(hooks));
  EXPECT_TRUE(batches.next()->has_value());
  own = {.failed = 1};
  EXPECT_EQ(batches.next().status().message(), "the disk is gone");
  EXPECT_EQ(seen.front(), std::pair(int64_t{1}, int64_t{0}));
  EXPECT_EQ(seen.back(), std::pair(int64_t{0}, int64_t{1}));
}

} // namespace
} // namespace distill::trainer
