#include <gmock/gmock.h>

#include <set>

#include "tests/trainer/plan/plan_requests.h"
#include "trainer/plan/solver.h"

// Plans with a part of the optimizer's state in host memory, and what is chosen together with it.
namespace distill::plan {
namespace {

using device::Category;

TEST(OptimizerStatePlan, OptimizerStateOnTheHostLeavesTheDevice) {
  config::Config config = settings(4);
  config.memory.optimizer = models::StatePlace::kHost;
  const Plan plan = plan_of(config, 4, llama_8b(), llama_8b());
  EXPECT_EQ(highest(plan, Category::kMaster), 0);
  EXPECT_LE(highest(plan, Category::kMoments), 1024); // the step counter and factors
  EXPECT_NEAR(static_cast<double>(plan.memory.host_optimizer), 12 * 8.03e9 / 4, 0.01 * 12 * 8.03e9 / 4);
  // Four pieces of three tensors, 32 MiB each, however large the embedding is.
  EXPECT_NEAR(static_cast<double>(highest(plan, Category::kStaging)), 12.0 * (1 << 25), 12.0 * (1 << 21));
  EXPECT_LT(plan.memory.peak(), plan_of(settings(4), 4, llama_8b(), llama_8b()).memory.peak());
}

// 12 bytes a parameter each way at 54 GB/s against what runs meanwhile: the next step's teacher and forward pass.
TEST(OptimizerStatePlan, OptimizerStateOnTheHostCostsWhatTheNextStepDoesNotHide) {
  using enum models::StatePlace;
  const auto seconds = [](int64_t sequences, models::StatePlace optimizer) {
    config::Config config = settings(1);
    config.train.micro_batch_size = config.train.global_batch_size = sequences;
    config.memory.optimizer = optimizer;
    return plan_of(config, 1, llama_1b(), llama_8b()).time;
  };
  constexpr double kCopies = 12 * 1.5e9 / 54e9; // 0.33 s
  const double cost = seconds(2, kHost).total() - seconds(2, kDevice).total();
  const double hidden = seconds(2, kDevice).phases[0] + seconds(2, kDevice).phases[1];
  EXPECT_NEAR(cost, kCopies - hidden, 0.05);
  EXPECT_LT(seconds(8, kHost).total(), 1.03 * seconds(8, kDevice).total()) << "hidden by 32768 tokens' work";
}

config::Config with_places(config::Config config, const std::string& places) {
  config.memory.optimizer = *config::parse_by_block<models::StatePlace>(places);
  return config;
}

// 1B <- 8B, 65536 tokens and the state of all blocks but the first on the host: one H200 had 75.13 GiB of tensors, and
// after the third step 75.93 reserved, more than after the second one. On an H100, where the CPU updates these blocks,
// 78.39 were reserved after five steps.
TEST(OptimizerStatePlan, ReservedMemoryIsThatOfLaterSteps) {
  Target target;
  const auto reserved_gib = [&](const std::string& places, const char* machine) {
    config::Config config = with_places(settings(1), places);
    config.train.micro_batch_size = config.train.global_batch_size = 16;
    const models::ModelConfig student = llama_1b(), teacher = llama_8b();
    const Plan plan = *make_plan(
        {config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, *machine_named(machine)});
    EXPECT_NEAR(static_cast<double>(plan.memory.peak()) / kGiB, 75, 0.5);
    return static_cast<double>(plan.memory.reserved_peak) / kGiB;
  };
  EXPECT_GT(reserved_gib("device,host*15", "H200"), 75.93);
  EXPECT_NEAR(reserved_gib("device,cpu*15", "H100-SXM"), 78.39, 1);
}

// The embedding is where the first block is, the final norm and lm_head where the last one is.
TEST(OptimizerStatePlan, PartsOfTheStateOnTheHostAreCountedUnitByUnit) {
  const double block = 12 * 218.1e6 / 4, table = 12 * 525.3e6 / 4; // bytes of a rank's shard
  const auto on_host = [&](const std::string& places) {
    const Plan plan = plan_of(with_places(settings(4), places), 4, llama_8b(), llama_8b());
    const double state = highest(plan, Category::kMaster) + highest(plan, Category::kMoments);
    const double found = static_cast<double>(plan.memory.host_optimizer);
    EXPECT_NEAR(state + found, 12 * 8.03e9 / 4, 0.01 * 12 * 8.03e9 / 4) << places;
    EXPECT_EQ(plan.memory.use.phases[1].highest[static_cast<size_t>(Category::kStaging)] > 0, found > 0) << places;
    return found;
  };
  EXPECT_EQ(on_host("device*32"), 0);
  EXPECT_NEAR(on_host("device*28,host*3,device"), 3 * block, 0.01 * block);
  EXPECT_NEAR(on_host("device*31,host"), block + table, 0.01 * block);
  EXPECT_NEAR(on_host("host*2,device*30"), 2 * block + table, 0.01 * block);
  EXPECT_EQ(on_host("host*32"), on_host("host"));
}

TEST(OptimizerStatePlan, MoreOfTheStateOnTheHostIsNeverFasterAndNeedsLessOfTheDevice) {
  double seconds = 0;
  int64_t peak = std::numeric_limits<int64_t>::max();
  for (const auto& places : state_placements(32)) {
    config::Config config = settings(2, "recompute");
    config.memory.optimizer = places;
    const Plan plan = plan_of(config, 2, llama_8b(), llama_8b());
    EXPECT_GE(plan.time.total(), seconds) << models::policies_text(places);
    EXPECT_LT(plan.memory.peak(), peak) << models::policies_text(places);
    seconds = plan.time.total();
    peak = plan.memory.peak();
  }
  // Late blocks are updated while the early ones run.
  const auto time_of = [](const std::string& places) {
    return plan_of(with_places(settings(2), places), 2, llama_8b(), llama_8b()).time.total();
  };
  EXPECT_LT(time_of("device*11,host*20,device"), time_of("host*20,device*12"));
  EXPECT_LT(time_of("device*27,host*4,device") / time_of("device"), 1.01) << "hidden by the teacher";
}

TEST(OptimizerStatePlan, AutomaticStateLeavesAsMuchOnTheDeviceAsFits) {
  config::Config config = settings(2);
  config.parallel.gather = config::Gather::kNccl;
  std::vector<int64_t> peaks;
  for (const auto& places : state_placements(32)) {
    config.memory.optimizer = places;
    peaks.push_back(plan_of(config, 2, llama_8b(), llama_8b()).memory.peak());
  }
  config.memory.optimizer = config::Automatic{};
  const auto on_host = [&](const Plan& plan) {
    return static_cast<size_t>(
        std::count(plan.shape.places.begin(), plan.shape.places.end(), models::StatePlace::kHost));
  };
  EXPECT_EQ(on_host(plan_of(config, 2, llama_8b(), llama_8b())), 0U);
  for (const size_t number : {3U, 11U, 25U, 32U}) {
    config.memory.budget_gib = (static_cast<double>(peaks[number]) + 0.5) / kGiB;
    const auto least = static_cast<size_t>(
        std::find_if(peaks.begin(), peaks.end(), [&](int64_t peak) { return peak <= peaks[number]; }) - peaks.begin());
    const Plan plan = plan_of(config, 2, llama_8b(), llama_8b());
    EXPECT_TRUE(plan.fits()) << number;
    EXPECT_EQ(on_host(plan), least) << number;
    EXPECT_EQ(plan.mixes, 33);
  }
  config.memory.budget_gib = static_cast<double>(peaks[32] - (int64_t{1} << 30)) / kGiB;
  const Plan none = plan_of(config, 2, llama_8b(), llama_8b());
  EXPECT_FALSE(none.fits());
  EXPECT_EQ(on_host(none), 32U) << "the plan that needs least";
}

// With one micro-batch the copies take longer than the teacher and the forward pass, so that memory which is left over
// is worth more stages.
TEST(OptimizerStatePlan, AutomaticStateHasAsManyStagesAsFitWhereTheNextStepWaits) {
  config::Config config = settings(1, "recompute");
  config.memory.optimizer = config::Automatic{};
  config.memory.budget_gib = 75;
  const Plan plan = plan_of(config, 1, llama_8b(), llama_8b());
  ASSERT_TRUE(plan.fits());
  ASSERT_TRUE(plan.shape.state_on_host());
  EXPECT_GT(plan.shape.state_stages, sharding::StateMemory::kLeastStages);
  constexpr double kStage = 12.0 * (1 << 23);
  EXPECT_NEAR(
      static_cast<double>(highest(plan, Category::kStaging)), kStage * static_cast<double>(plan.shape.state_stages),
      0.1 * kStage * static_cast<double>(plan.shape.state_stages));
  EXPECT_LT(75 * kGiB - static_cast<double>(plan.memory.peak()), 1.1 * kStage) << "another one would fit";
  config.memory.optimizer = plan.shape.places;
  EXPECT_GT(plan_of(config, 1, llama_8b(), llama_8b()).time.total(), plan.time.total());
}

// The CPU and the link work at the same time: each takes as many blocks as make the step shortest.
TEST(OptimizerStatePlan, AutomaticStateIsSharedBetweenTheCpuAndTheLinkByTheirSpeeds) {
  config::Config config = settings(1, "recompute");
  config.memory.optimizer = config::Automatic{};
  config.memory.budget_gib = 75;
  Machine machine = h200();
  const auto planned = [&](double host_update_bytes) {
    machine.host_update_bytes = host_update_bytes;
    return plan_of(config, 1, llama_8b(), llama_8b(), machine);
  };
  const auto by_cpu = [](const Plan& plan) {
    return std::count(plan.shape.places.begin(), plan.shape.places.end(), models::StatePlace::kCpu);
  };
  Plan before = planned(0);
  EXPECT_EQ(by_cpu(before), 0) << "its speed is not known";
  for (const double speed : {40e9, 80e9, 160e9}) {
    const Plan plan = planned(speed);
    ASSERT_TRUE(plan.fits());
    EXPECT_GT(by_cpu(plan), by_cpu(before)) << speed;
    EXPECT_LT(plan.time.total(), before.time.total()) << speed;
    // The gradients of what the CPU updates are on the host too.
    EXPECT_GT(plan.memory.host_optimizer, before.memory.host_optimizer) << speed;
    // No other share is faster.
    const int64_t on_host = std::count_if(plan.shape.places.begin(), plan.shape.places.end(), models::is_on_host);
    for (int64_t other = 0; other <= on_host; ++other) {
      config::Config by_hand = config;
      by_hand.memory.optimizer = state_placement(32, on_host, other);
      const Plan shared = plan_of(by_hand, 1, llama_8b(), llama_8b(), machine);
      EXPECT_LE(plan.time.total(), 1.000001 * shared.time.total()) << other;
    }
    before = plan;
  }
}

// Policies of blocks and places of their state are chosen together.
TEST(OptimizerStatePlan, AutomaticPoliciesAndPlacesAreNoSlowerThanEitherAlone) {
  for (const double budget : {60.0, 70.0}) {
    config::Config config = settings(2, "auto");
    config.memory.budget_gib = budget;
    const Plan policies = plan_of(config, 2, llama_8b(), llama_8b());
    config.memory.optimizer = config::Automatic{};
    const Plan both = plan_of(config, 2, llama_8b(), llama_8b());
    EXPECT_TRUE(both.fits()) << budget;
    for (const models::ActivationPolicy policy :
         {models::ActivationPolicy::kKeep, models::ActivationPolicy::kRecompute}) {
      config.memory.activation = policy;
      const Plan places = plan_of(config, 2, llama_8b(), llama_8b());
      EXPECT_TRUE(!places.fits() || both.time.total() <= 1.000001 * places.time.total()) << budget;
    }
    EXPECT_TRUE(!policies.fits() || both.time.total() <= 1.000001 * policies.time.total()) << budget;
    if (budget == 70) {
      EXPECT_LT(both.time.total(), 0.95 * policies.time.total()) << "hidden copies cost less than recomputation";
    }
  }
}

// Every mix by itself, without the solver's short cuts.
TEST(OptimizerStatePlan, AutomaticPoliciesAreTheFastestOfAllMixesThatFit) {
  models::ModelConfig student = llama_8b();
  models::ModelConfig teacher = llama_1b();
  student.layers.resize(6);
  student.vocab_size = teacher.vocab_size = 8192; // the blocks are what decides
  config::Config config = settings(2);
  config.train.micro_batch_size = 8;
  config.train.global_batch_size = 16;
  std::vector<Plan> mixes;
  for (int64_t keep = 0; keep <= 6; ++keep) {
    for (int64_t recompute = 0; keep + recompute <= 6; ++recompute) {
      for (int64_t offload = 0; keep + recompute + offload <= 6; ++offload) {
        config.memory.activation = arrange({keep, recompute, offload, 6 - keep - recompute - offload});
        mixes.push_back(plan_of(config, 2, student, teacher));
      }
    }
  }
  ASSERT_EQ(mixes.size(), 84U);
  const auto [least, most] = std::minmax_element(
      mixes.begin(), mixes.end(), [](const Plan& a, const Plan& b) { return a.memory.peak() < b.memory.peak(); });
  const int64_t lowest = least->memory.peak(), highest = most->memory.peak();
  config.memory.activation = config::Automatic{};
  std::set<std::string> found;
  for (int64_t i = 0; i <= 20; ++i) {
    const int64_t budget = lowest + (highest - lowest) * i / 20;
    config.memory.budget_gib = (static_cast<double>(budget) + 0.5) / kGiB;
    const Plan plan = plan_of(config, 2, student, teacher);
    ASSERT_TRUE(plan.fits()) << i;
    found.insert(models::policies_text(plan.shape.policies));
    for (const Plan& other : mixes) {
      if (other.memory.peak() <= budget) {
        EXPECT_LE(plan.time.total(), other.time.total() * 1.000001) << models::policies_text(other.shape.policies);
      }
    }
  }
  EXPECT_GE(found.size(), 5U); // the budgets ask for different mixes
}

// Policies, places, slots and gathers of every combination by itself, on cards too small for the fastest one.
TEST(OptimizerStatePlan, AutomaticPoliciesPlacesSlotsAndGathersAreTheFastestOfAllThatFit) {
  models::ModelConfig student = llama_8b(), teacher = llama_8b();
  student.layers.resize(3);
  teacher.layers.resize(3);
  student.vocab_size = teacher.vocab_size = 8192;
  config::Config config = settings(2);
  std::vector<std::pair<int64_t, double>> all; // peak and seconds
  for (const config::Gather gather : {config::Gather::kCopy, config::Gather::kNccl}) {
    config.parallel.gather = gather;
    for (int64_t slots = 2; slots <= 6; ++slots) {
      config.parallel.slots = slots;
      for (const auto& places : state_placements(3)) {
        config.memory.optimizer = places;
        for (int64_t keep = 0; keep <= 3; ++keep) {
          for (int64_t recompute = 0; keep + recompute <= 3; ++recompute) {
            for (int64_t offload = 0; keep + recompute + offload <= 3; ++offload) {
              config.memory.activation = arrange({keep, recompute, offload, 3 - keep - recompute - offload});
              const Plan plan = plan_of(config, 2, student, teacher);
              all.emplace_back(plan.memory.peak(), plan.time.total());
            }
          }
        }
      }
    }
  }
  ASSERT_EQ(all.size(), 2U * 5 * 4 * 20);
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  config.parallel.gather = config::Gather::kAuto;
  config.parallel.slots = config::kAutomatic;
  config.memory.activation = config::Automatic{};
  config.memory.optimizer = config::Automatic{};
  std::set<std::string> found;
  for (int64_t i = 0; i <= 12; ++i) {
    const int64_t budget = least->first + (most->first - least->first) * i / 12;
    config.memory.budget_gib = (static_cast<double>(budget) + 0.5) / kGiB;
    const Plan plan = plan_of(config, 2, student, teacher);
    ASSERT_TRUE(plan.fits()) << i;
    double fastest = std::numeric_limits<double>::infinity();
    for (const auto& [peak, seconds] : all) {
      fastest = peak <= budget ? std::min(fastest, seconds) : fastest;
    }
    EXPECT_LE(plan.time.total(), 1.002 * fastest) << i;
    found.insert(absl::StrCat(
        models::policies_text(plan.shape.policies), " ", models::policies_text(plan.shape.places), " ",
        plan.shape.config.parallel.slots, plan.shape.copies()));
  }
  EXPECT_GE(found.size(), 5U) << "the budgets ask for different combinations";
}

} // namespace
} // namespace distill::plan
