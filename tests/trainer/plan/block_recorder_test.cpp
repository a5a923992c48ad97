#include "trainer/plan/block_recorder.h"

#include <gtest/gtest.h>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/sharding/simulated_mesh.h"

namespace distill::plan {
namespace {

struct Seen {
  device::MemoryUse use;
  int64_t reserved = 0;
};

// Two simulated steps of the tiny models on `ranks` ranks; `blocks` null: every op of every block is dispatched.
Seen simulate(
    const config::Config& config, c10::DeviceType target, at::ScalarType dtype, int64_t ranks,
    const std::vector<models::ActivationPolicy>& policies, BlockRecorder* blocks) {
  device::Simulation simulation(target);
  const auto mesh = sharding::simulated_mesh(ranks, 1, /*shared_memory=*/ranks > 1);
  const trainer::ModelSource student{trainer::tiny_model(3), nullptr}, teacher{trainer::tiny_model(2, 32), nullptr};
  trainer::LoadedModels models = *trainer::load_models(
      config, {at::Device(at::kMeta), dtype, dtype}, *mesh, student, &teacher, /*host_state=*/nullptr);
  trainer::TrainStep step(
      config, *mesh, models, {policies, device::HostSlab::simulated()},
      blocks != nullptr ? blocks->functions(simulation) : models::BlockFunctions{});
  const trainer::GlobalBatch batch = trainer::tiny_batch(config);
  step.run(batch, {});
  step.run(batch, {});
  return {simulation.use(), simulation.reserved_peak()};
}

TEST(BlockRecorder, AReplayedRunIsTheDispatchedOne) {
  using enum models::ActivationPolicy;
  const std::vector<std::vector<models::ActivationPolicy>> mixes = {
      {kKeep, kKeep, kKeep}, {kRecompute, kOffload, kKeep}, {kOffloadInput, kOffload, kOffload}};
  for (const c10::DeviceType target : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      BlockRecorder blocks;
      for (const auto& mix : mixes) {
        for (const int64_t ranks : {1, 2}) {
          const config::Config config = trainer::tiny_config(2);
          const Seen dispatched = simulate(config, target, dtype, ranks, mix, nullptr);
          const Seen replayed = simulate(config, target, dtype, ranks, mix, &blocks);
          for (size_t phase = 0; phase < device::kNumMemoryPhases; ++phase) {
            EXPECT_EQ(replayed.use.phases[phase].bytes, dispatched.use.phases[phase].bytes);
            EXPECT_EQ(replayed.use.phases[phase].at_peak, dispatched.use.phases[phase].at_peak);
            EXPECT_EQ(replayed.use.phases[phase].highest, dispatched.use.phases[phase].highest);
          }
          EXPECT_EQ(replayed.use.now, dispatched.use.now);
          EXPECT_EQ(replayed.reserved, dispatched.reserved);
        }
      }
    }
  }
}

// Recordings are told apart by everything that changes what a block allocates.
TEST(BlockRecorder, ServesRunsOfOtherShapes) {
  BlockRecorder blocks;
  using enum models::ActivationPolicy;
  for (const int64_t micro_batch : {1, 2, 4}) {
    for (const int64_t length : {12, 24}) {
      config::Config config = trainer::tiny_config(micro_batch);
      config.data.seq_len = length;
      const std::vector<models::ActivationPolicy> policies{kKeep, kRecompute, kKeep};
      const Seen alone = simulate(config, c10::DeviceType::CUDA, at::kBFloat16, 1, policies, nullptr);
      const Seen shared = simulate(config, c10::DeviceType::CUDA, at::kBFloat16, 1, policies, &blocks);
      EXPECT_EQ(shared.use.peak(), alone.use.peak()) << micro_batch << " x " << length;
    }
  }
}

} // namespace
} // namespace distill::plan
