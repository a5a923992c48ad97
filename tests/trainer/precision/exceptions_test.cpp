#include "trainer/precision/exceptions.h"

#include <gmock/gmock.h>

#include "tests/trainer/step/tiny_step.h"

namespace distill::precision {
namespace {

constexpr int64_t kBlocks = 3;

// A float8 teacher whose weights are made up, on one process, and the reports of progress that it is measured with.
struct Teacher {
  trainer::ModelSource source;
  trainer::Environment environment;
  sharding::Mesh mesh;
  std::vector<std::string> places; // that were reported

  Teacher() {
    source.config = trainer::tiny_model(kBlocks, 32);
    source.weights = models::random_weights(source.config, 3);
    source.config.float8 = *Variant::all_but({}, kBlocks);
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

// Each walk over the blocks reports once for the embedding, for every block, and for the batch in the loss head.
TEST(FindExceptions, EveryBlockIsProgress) {
  Teacher teacher;
  ASSERT_TRUE(teacher.search({tiny_batches().front()}, {.mean_kl = 100}).ok());
  EXPECT_EQ(teacher.places.size(), 1 + kBlocks + 1);
  EXPECT_THAT(teacher.places, testing::Each(testing::Eq("comparing precisions")));
}

} // namespace
} // namespace distill::precision
