#include "trainer/plan/block_recorder.h"

#include <gtest/gtest.h>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/sharding/simulated_mesh.h"

namespace distill::plan {
namespace {

struct SimulatedMemory {
  device::MemoryUse use;
  int64_t reserved = 0;
};

// Two simulated steps of the tiny models on `ranks` ranks, the first with a shadow if the configuration asks for some;
// `blocks` null: every op of every block is dispatched.
SimulatedMemory simulate(
    const config::Config& config, c10::DeviceType target, at::ScalarType dtype, int64_t ranks,
    const std::vector<models::ActivationPolicy>& policies, BlockRecorder* blocks,
    const models::ModelConfig& student_model = trainer::tiny_model(3), int64_t tile_tokens = 0,
    bool recomputes_attention = true) {
  device::Simulation simulation(target);
  const auto mesh = sharding::simulated_mesh(ranks, 1, /*shared_memory=*/ranks > 1);
  const trainer::ModelSource student{student_model, nullptr}, teacher{trainer::tiny_model(2, 32), nullptr};
  trainer::LoadedModels models = *trainer::load_models(
      config, {at::Device(at::kMeta), dtype, dtype}, *mesh, student, trainer::TeacherSpec::running(teacher),
      /*state=*/{});
  models::BlockFunctions functions = blocks != nullptr ? blocks->functions(simulation) : models::BlockFunctions{};
  functions.tile_tokens = tile_tokens;
  functions.recomputes_attention = recomputes_attention;
  trainer::TrainStep step(config, *mesh, models, {policies, device::HostSlab::simulated()}, std::move(functions));
  const trainer::GlobalBatch batch = trainer::tiny_batch(config);
  step.run(batch, {.shadow = config.float8.shadow_every > 0});
  step.run(batch, {});
  return {simulation.use(), simulation.reserved_peak()};
}

void expect_same(const SimulatedMemory& replayed, const SimulatedMemory& dispatched) {
  for (size_t phase = 0; phase < device::kNumMemoryPhases; ++phase) {
    EXPECT_EQ(replayed.use.phases[phase].bytes, dispatched.use.phases[phase].bytes);
    EXPECT_EQ(replayed.use.phases[phase].at_peak, dispatched.use.phases[phase].at_peak);
    EXPECT_EQ(replayed.use.phases[phase].highest, dispatched.use.phases[phase].highest);
  }
  EXPECT_EQ(replayed.use.now, dispatched.use.now);
  EXPECT_EQ(replayed.reserved, dispatched.reserved);
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
          const SimulatedMemory dispatched = simulate(config, target, dtype, ranks, mix, nullptr);
          const SimulatedMemory replayed = simulate(config, target, dtype, ranks, mix, &blocks);
          expect_same(replayed, dispatched);
        }
      }
    }
  }
}

// Some blocks of one model compute in float8 and others do not; in a step with a shadow a block does both.
TEST(BlockRecorder, PassesInFloat8AreToldApartFromOthers) {
  using enum models::ActivationPolicy;
  for (const c10::DeviceType target : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    for (const std::vector<std::string>& exceptions :
         {std::vector<std::string>{}, std::vector<std::string>{"0"}, std::vector<std::string>{"2"}}) {
      for (const auto& [shadow_every, weight_gradients] : {std::pair(0, false), {1, false}, {0, true}, {1, true}}) {
        SCOPED_TRACE(absl::StrCat(
            absl::StrJoin(exceptions, ","), ", shadow_every ", shadow_every, ", weight gradients ", weight_gradients));
        models::ModelConfig student = trainer::tiny_model(3, 64);
        student.kinds[0].mlp.ffn = 128;
        student.float8 = *models::Float8Products::all_but(exceptions, models::block_products(student));
        student.float8_weight_gradients = weight_gradients;
        config::Config config = trainer::tiny_config(4);
        config.data.seq_len = 128;
        config.float8.shadow_every = shadow_every;
        const std::vector<models::ActivationPolicy> policies{kKeep, kRecompute, kKeep};
        for (const int64_t ranks : {1, 2}) {
          BlockRecorder blocks;
          const SimulatedMemory dispatched = simulate(config, target, at::kBFloat16, ranks, policies, nullptr, student);
          expect_same(simulate(config, target, at::kBFloat16, ranks, policies, &blocks, student), dispatched);
        }
      }
    }
  }
}

// Products of weights' gradients in float8 have operands that exist for them alone.
TEST(BlockRecorder, WeightGradientsInFloat8AreToldApartFromOthers) {
  models::ModelConfig student = trainer::tiny_model(3, 64);
  student.kinds[0].mlp.ffn = 1024; // whose gradient needs the most memory
  student.float8 = *models::Float8Products::all_but({}, models::block_products(student));
  config::Config config = trainer::tiny_config(4);
  config.data.seq_len = 250; // 1000 tokens, which the operands of the products pad to 1024
  const std::vector<models::ActivationPolicy> policies(3, models::ActivationPolicy::kKeep);
  for (const c10::DeviceType target : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    BlockRecorder blocks;
    std::array<int64_t, 2> highest{};
    for (const bool weight_gradients : {false, true}) {
      student.float8_weight_gradients = weight_gradients;
      const SimulatedMemory dispatched = simulate(config, target, at::kBFloat16, 1, policies, nullptr, student);
      expect_same(simulate(config, target, at::kBFloat16, 1, policies, &blocks, student), dispatched);
      const auto& backward = dispatched.use.phases[static_cast<size_t>(device::MemoryPhase::kBackward)];
      highest[weight_gradients ? 1 : 0] = backward.highest[static_cast<size_t>(device::Category::kWorkspace)];
    }
    if (target == c10::DeviceType::CUDA) { // a CPU multiplies in fp32, whose copies are larger
      EXPECT_LT(highest[0], highest[1]);
    }
  }
}

// Layers of two kinds in turn: another width of the MLP, and norms of the sublayers' outputs.
TEST(BlockRecorder, KindsOfLayersAreToldApart) {
  using enum models::ActivationPolicy;
  models::ModelConfig student = trainer::tiny_model(3);
  student.kinds.push_back(models::with_norms_after(student.kinds[0]));
  student.kinds[1].mlp.ffn = 40;
  student.layers = {1, 0, 1};
  for (const c10::DeviceType target : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    for (const auto& policies : {std::vector{kKeep, kKeep, kKeep}, std::vector{kRecompute, kOffload, kRecompute}}) {
      const config::Config config = trainer::tiny_config(2);
      BlockRecorder blocks;
      const SimulatedMemory dispatched = simulate(config, target, at::kFloat, 1, policies, nullptr, student);
      expect_same(simulate(config, target, at::kFloat, 1, policies, &blocks, student), dispatched);
    }
  }
}

TEST(BlockRecorder, TilesAndSavedAttentionAreToldApart) {
  using enum models::ActivationPolicy;
  models::ModelConfig student = trainer::tiny_model(3);
  student.kinds.push_back(models::with_norms_after(student.kinds[0]));
  student.layers = {1, 0, 1};
  const config::Config config = trainer::tiny_config(2);
  for (const c10::DeviceType target : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    BlockRecorder blocks;
    for (const int64_t tile : {0, 5, 9}) {
      for (const auto& policies :
           {std::vector{kKeep, kOffload, kKeep}, std::vector{kRecompute, kKeep, kOffloadInput}}) {
        for (const bool recomputes_attention : {true, false}) {
          const auto run = [&](BlockRecorder* recorder) {
            return simulate(config, target, at::kFloat, 1, policies, recorder, student, tile, recomputes_attention);
          };
          const SimulatedMemory dispatched = run(nullptr);
          expect_same(run(&blocks), dispatched);
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
      const SimulatedMemory alone = simulate(config, c10::DeviceType::CUDA, at::kBFloat16, 1, policies, nullptr);
      const SimulatedMemory shared = simulate(config, c10::DeviceType::CUDA, at::kBFloat16, 1, policies, &blocks);
      EXPECT_EQ(shared.use.peak(), alone.use.peak()) << micro_batch << " x " << length;
    }
  }
}

} // namespace
} // namespace distill::plan
