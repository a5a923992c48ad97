#include <gtest/gtest.h>

#include <map>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/device/simulation.h"
#include "trainer/sharding/simulated_mesh.h"

// The number of gathers of the trainer's own steps against the least that is possible, found by trying every choice of
// what the slots hold.
namespace distill::trainer {
namespace {

constexpr int64_t kSteps = 3;

struct Case {
  int64_t teacher_blocks, student_blocks, slots, prefetch, micro_batches;
};

config::Config config_of(const Case& c) {
  config::Config config = tiny_config(/*micro_batch_size=*/4 / c.micro_batches);
  config.parallel.prefetch = c.prefetch;
  config.parallel.slots = c.slots;
  return config;
}

// Gathers of blocks in kSteps simulated steps on two ranks.
int64_t gathers_of(const Case& c) {
  device::Simulation simulation(c10::DeviceType::CUDA);
  const config::Config config = config_of(c);
  const auto mesh = sharding::simulated_mesh(2, 1, /*shared_memory=*/true);
  const ModelSource student{tiny_model(c.student_blocks), nullptr}, teacher{tiny_model(c.teacher_blocks), nullptr};
  LoadedModels models = *load_models(
      config, {at::Device(at::kMeta), at::kFloat, at::kFloat}, *mesh, student, TeacherSpec::running(teacher), {});
  const std::vector<models::ActivationPolicy> policies(
      static_cast<size_t>(c.student_blocks), models::ActivationPolicy::kKeep);
  TrainStep step(config, *mesh, models, {policies, device::HostSlab::simulated()});
  const GlobalBatch batch = tiny_batch(config);
  for (int64_t i = 0; i < kSteps; ++i) {
    step.run(batch, {});
  }
  // Embedding and head of both models are gathered once in each micro-batch, and the next step's embedding ahead.
  const int64_t large = kSteps * c.micro_batches * 4 + 1;
  return models.slots.weights->gathered().units - large;
}

// The units that must be in the slots at the same time, as a set of bits: the teacher's blocks, then the student's.
struct Moment {
  uint32_t needed = 0;
  bool student_changes = false; // afterwards
};

// Adds a pass: each block with those that are gathered ahead of it; the last one with `next`.
void add_pass(std::vector<Moment>& moments, const std::vector<int64_t>& blocks, int64_t prefetch, uint32_t next) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    Moment moment;
    for (size_t k = i; k < std::min(blocks.size(), i + 1 + static_cast<size_t>(prefetch)); ++k) {
      moment.needed |= 1U << blocks[k];
    }
    moments.push_back(moment);
    if (i + 1 == blocks.size()) {
      moments.back().needed |= next;
    }
  }
}

std::vector<Moment> moments_of(const Case& c) {
  std::vector<int64_t> teacher, student, reversed;
  for (int64_t i = 0; i < c.teacher_blocks; ++i) {
    teacher.push_back(i);
  }
  for (int64_t i = 0; i < c.student_blocks; ++i) {
    student.push_back(c.teacher_blocks + i);
  }
  reversed.assign(student.rbegin(), student.rend());
  std::vector<Moment> moments;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t micro = 0; micro < c.micro_batches; ++micro) {
      add_pass(moments, teacher, c.prefetch, 1U << student.front());
      add_pass(moments, student, c.prefetch, 0);
      add_pass(moments, reversed, c.prefetch, 0);
      moments.push_back({.needed = 1U << teacher.front()}); // the next micro-batch's first block
    }
    moments.back().student_changes = true;
  }
  return moments;
}

// The least number of gathers, over every choice of what is evicted.
int64_t least_gathers(const Case& c) {
  const uint32_t students = ((1U << c.student_blocks) - 1) << c.teacher_blocks;
  std::map<uint32_t, int64_t> costs{{0, 0}}; // of every set that the slots may hold
  for (const Moment& moment : moments_of(c)) {
    std::map<uint32_t, int64_t> next;
    const auto reach = [&next](uint32_t held, int64_t cost) {
      const auto [entry, is_new] = next.try_emplace(held, cost);
      entry->second = std::min(entry->second, cost);
    };
    for (const auto& [held, cost] : costs) {
      const int64_t gathered = std::popcount(moment.needed & ~held);
      const uint32_t others = held & ~moment.needed;
      for (uint32_t kept = others;; kept = (kept - 1) & others) { // every subset
        if (std::popcount(kept | moment.needed) <= c.slots) {
          const uint32_t all = kept | moment.needed;
          reach(moment.student_changes ? all & ~students : all, cost + gathered);
        }
        if (kept == 0) {
          break;
        }
      }
    }
    costs = std::move(next);
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [held, cost] : costs) {
    least = std::min(least, cost);
  }
  return least;
}

TEST(GatherSchedule, NoChoiceOfWhatIsHeldNeedsFewerGathers) {
  for (const int64_t prefetch : {1, 2}) {
    for (const int64_t micro_batches : {1, 2, 4}) {
      for (const auto& [teacher, student] : {std::pair(3, 3), std::pair(1, 5), std::pair(5, 2), std::pair(2, 4)}) {
        for (int64_t slots = prefetch + 1; slots <= teacher + student + 1; ++slots) {
          const Case c{teacher, student, slots, prefetch, micro_batches};
          EXPECT_EQ(gathers_of(c), least_gathers(c))
              << teacher << " blocks of the teacher, " << student << " of the student, " << slots << " slots, prefetch "
              << prefetch << ", " << micro_batches << " micro-batches";
        }
      }
    }
  }
}

TEST(GatherSchedule, SlotsForAllBlocksGatherTheTeacherOnceAndTheStudentOncePerStep) {
  const Case all{4, 3, 7, 1, 2};
  EXPECT_EQ(gathers_of(all), 4 + kSteps * 3);
  const Case few{4, 3, 2, 1, 2};
  // The student's last two blocks are still there when the backward pass begins.
  EXPECT_EQ(gathers_of(few), least_gathers(few));
  EXPECT_GT(gathers_of(few), 2 * gathers_of(all));
}

} // namespace
} // namespace distill::trainer
