#include "trainer/float8_gate/exceptions.h"

#include <gmock/gmock.h>

#include "tests/trainer/step/tiny_step.h"

namespace distill::float8_gate {
namespace {

constexpr int64_t kBlocks = 3;

// A float8 teacher whose weights are made up, on one process, and the reports of progress that it is measured with.
struct Teacher {
  models::ModelSource source;
  trainer::Environment environment;
  sharding::Mesh mesh;
  std::vector<std::string> places; // that were reported

  Teacher() {
    source.config = trainer::tiny_model(kBlocks, 32);
    source.weights = models::random_weights(source.config, 3);
    source.config.float8 = *models::Float8Products::all_but({}, models::block_products(source.config));
    mesh.watch = [this](int64_t, const char* place) { places.emplace_back(place); };
  }
  absl::StatusOr<ExceptionSearch> search(
      const std::vector<data::Batch>& batches, const Limits& limits, int64_t memory = 1 << 30) const {
    return find_exceptions(source, environment, mesh, batches, limits, {}, memory);
  }
};

std::vector<data::Batch> tiny_batches() {
  return trainer::tiny_batch(trainer::tiny_config(1)).micro_batches;
}

// The batch's tokens in the middle of a longer text of the teacher's own.
data::Batch with_own_text(data::Batch batch, int64_t length) {
  const int64_t rows = batch.tokens_BS.size(0), seq_len = batch.tokens_BS.size(1);
  data::TeacherBatch own;
  own.tokens_BT = at::randint(0, 40, {rows, length}, at::kLong);
  own.positions_BT = at::arange(length).expand({rows, length}).contiguous();
  own.cu_seqlens = at::arange(0, (rows + 1) * length, length, at::kInt);
  own.max_seqlen = length;
  own.rows_BS = (at::arange(rows) * length).unsqueeze(1) + at::arange(seq_len).unsqueeze(0);
  batch.teacher = own;
  return batch;
}

TEST(FindExceptions, SingleProductsAreMeasuredWhereThereAreTargets) {
  const Teacher teacher;
  std::vector<data::Batch> batches = tiny_batches();
  const auto all = teacher.search(batches, {.mean_kl = 100}).value();
  batches[0].targets_BS = at::full_like(batches[0].targets_BS, -100);
  batches[0].valid_tokens = 0;
  const auto found = teacher.search(batches, {.mean_kl = all.before.mean_kl / 4}).value();
  ASSERT_EQ(found.effects.size(), kBlocks * 4);
  for (const ProductError& effect : found.effects) {
    EXPECT_GT(effect.mean_kl, 0) << effect.product.block;
  }
}

// Each comparison reports once for the embedding, for every block, and for the batch in the loss head.
TEST(FindExceptions, EveryBlockIsProgress) {
  Teacher teacher;
  ASSERT_TRUE(teacher.search({tiny_batches().front()}, {.mean_kl = 100}).ok());
  EXPECT_EQ(teacher.places.size(), 1 + kBlocks + 1);
  EXPECT_THAT(teacher.places, testing::Each(testing::Eq("comparing precisions")));
}

// A teacher that reads 48 tokens where the student reads 12 holds four times the states, so that a quarter of the
// products are measured at a time.
TEST(FindExceptions, VariantsAtOnceFollowFromTheTokensThatTheTeacherReads) {
  const Limits unreachable{.mean_kl = 1e-30};
  const auto comparisons = [&](const data::Batch& batch) {
    Teacher teacher;
    const int64_t states_of_six = int64_t{6} * 12 * 32 * 4; // products, tokens, hidden, bytes
    TORCH_CHECK(teacher.search({batch}, unreachable, states_of_six).ok());
    return static_cast<int64_t>(teacher.places.size()) / (1 + kBlocks + 1);
  };
  const data::Batch batch = tiny_batches().front();
  const int64_t before_and_after = comparisons(batch) - 12 / 6;
  EXPECT_EQ(comparisons(with_own_text(batch, 48)), before_and_after + 12 / 1);
}

TEST(Limits, TextNamesWhatDecides) {
  EXPECT_EQ((Limits{.mean_kl = 0.03}).text(), "a mean KL of at most 0.03 nats (float8.max_mean_kl)");
  EXPECT_EQ(
      (Limits{.mean_kl = 0.03, .p99_kl = 0.5}).text(),
      "a mean KL of at most 0.03 nats (float8.max_mean_kl) and a 99th percentile of at most 0.5 (float8.max_p99_kl)");
}

} // namespace
} // namespace distill::float8_gate
