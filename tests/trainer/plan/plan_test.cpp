#include "trainer/plan/plan.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/trainer/plan/plan_requests.h"
#include "trainer/plan/solver.h"

namespace distill::plan {
namespace {

using device::Category;

TEST(Plan, GathersByCopiesTakeTheStudentsShardInItsComputeDtype) {
  config::Config config = settings(4);
  const auto with = [&](config::Gather gather) {
    config.parallel.gather = gather;
    return plan_of(config, 4, llama_8b(), llama_8b());
  };
  const Plan nccl = with(config::Gather::kNccl), copy = with(config::Gather::kCopy);
  const double shard = 2 * 8.03e9 / 4;
  const auto at_peak = [](const Plan& plan) {
    const device::PhasePeak& peak = plan.memory.use.phases[static_cast<size_t>(plan.memory.use.peak_phase())];
    return peak.at_peak[static_cast<size_t>(Category::kStudent)];
  };
  EXPECT_EQ(at_peak(nccl), 0);
  EXPECT_NEAR(static_cast<double>(at_peak(copy)), shard, 0.01 * shard);
  EXPECT_NEAR(static_cast<double>(copy.memory.peak() - nccl.memory.peak()), shard, 0.01 * shard);
  EXPECT_NEAR(static_cast<double>(copy.memory.peer_bytes), 2 * shard, 0.01 * 2 * shard); // the teacher's too
  EXPECT_NEAR(
      highest(copy, Category::kTeacher), highest(nccl, Category::kTeacher), 2 << 20); // a rest not worth splitting
  EXPECT_EQ(copy.memory.gathers.units, nccl.memory.gathers.units);
  EXPECT_LT(copy.time.total(), nccl.time.total());
  EXPECT_TRUE(with(config::Gather::kAuto).shape.copies());
}

TEST(Plan, AutomaticGathersDoWithoutCopiesWhereTheyDoNotFit) {
  config::Config config = settings(4);
  config.parallel.gather = config::Gather::kNccl;
  const double least = static_cast<double>(plan_of(config, 4, llama_8b(), llama_8b()).memory.peak()) / kGiB;
  config.parallel.gather = config::Gather::kAuto;
  config.memory.budget_gib = least + 0.1;
  const Plan tight = plan_of(config, 4, llama_8b(), llama_8b());
  EXPECT_TRUE(tight.fits());
  EXPECT_FALSE(tight.shape.copies());
  config.memory.budget_gib = least + 5;
  EXPECT_TRUE(plan_of(config, 4, llama_8b(), llama_8b()).shape.copies());
  config.parallel.gather = config::Gather::kCopy;
  config.memory.budget_gib = least + 0.1;
  const Plan copy = plan_of(config, 4, llama_8b(), llama_8b());
  EXPECT_FALSE(copy.fits());
  ASSERT_FALSE(copy.changes.empty());
  for (const Change& change : copy.changes) {
    EXPECT_LE(change.peak_bytes, config.memory.budget_gib * kGiB) << change.text();
  }
}

TEST(Plan, CopiesStayWithinANode) {
  config::Config config = settings(16);
  config.parallel.gather = config::Gather::kAuto;
  EXPECT_FALSE(plan_of(config, 16, llama_1b(), llama_8b()).shape.copies());
  config.parallel.replicate = 2;
  EXPECT_TRUE(plan_of(config, 16, llama_1b(), llama_8b()).shape.copies());
  config.parallel.replicate = 1;
  config.parallel.gather = config::Gather::kCopy;
  const models::ModelConfig student = llama_1b(), teacher = llama_8b();
  Target target;
  target.world_size = 16;
  const auto plan = make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, h200()});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), testing::HasSubstr("parallel.gather"));
  target.peer_memory = true; // a run whose ranks have found that they can
  EXPECT_TRUE(make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, h200()}).ok());
}

// Embedding and head of both models in each of two micro-batches, the blocks of each pass but for those that are still
// in a slot: two where the student turns round.
TEST(Plan, SlotsAreCountedInGathersAndBytes) {
  config::Config config = settings(4);
  config.train.global_batch_size = 16;
  const auto with = [&](int64_t slots) {
    config.parallel.slots = slots;
    return plan_of(config, 4, llama_1b(), llama_1b());
  };
  const Plan two = with(0), six = with(6), all = with(33);
  EXPECT_EQ(two.shape.micro_batches, 2);
  EXPECT_EQ(two.memory.gathers.units, 2 * (4 + 16 + 16 + 16 - 2));
  EXPECT_EQ(all.memory.gathers.units, 2 * 4 + 16);
  EXPECT_LT(six.memory.gathers.units, two.memory.gathers.units);
  EXPECT_GT(six.memory.gathers.units, all.memory.gathers.units);
  EXPECT_LT(six.memory.gathers.total_bytes(), two.memory.gathers.total_bytes());
  EXPECT_LT(six.time.total(), two.time.total());
  const double block = 2 * 60.8e6; // bytes
  EXPECT_NEAR(static_cast<double>(six.memory.static_bytes - two.memory.static_bytes), 4 * block, 0.01 * 4 * block);
}

TEST(Plan, AutomaticSlotsTakeTheMemoryThatIsLeft) {
  config::Config config = settings(4);
  config.parallel.gather = config::Gather::kCopy;
  const Plan least = plan_of(config, 4, llama_1b(), llama_8b());
  config.parallel.slots = config::kAutomatic;
  double last = least.memory.gathers.units;
  for (const double room : {0.1, 2.0, 5.0}) { // GiB
    config.memory.budget_gib = static_cast<double>(least.memory.peak()) / kGiB + room;
    const Plan plan = plan_of(config, 4, llama_1b(), llama_8b());
    EXPECT_TRUE(plan.fits());
    EXPECT_LE(plan.time.total(), least.time.total());
    EXPECT_LE(plan.memory.gathers.units, last);
    last = plan.memory.gathers.units;
    config.parallel.slots = plan.shape.config.parallel.slots + 1; // one more does not fit
    EXPECT_FALSE(plan_of(config, 4, llama_1b(), llama_8b()).fits()) << room;
    config.parallel.slots = config::kAutomatic;
  }
  EXPECT_LT(last, least.memory.gathers.units);
  config.memory.budget_gib = 0;
  EXPECT_EQ(plan_of(config, 4, llama_1b(), llama_8b()).shape.config.parallel.slots, 16 + 32);
}

// 8.03 B parameters: 16 bytes each for master, moments and gradient, shared by the ranks.
TEST(Plan, StateIsSharedByTheRanksOfTheShardAxis) {
  const double parameters = 8.03e9;
  const double rest = 34 * (1 << 20); // a block may be larger than what was asked for by a rest not worth splitting
  for (const int64_t ranks : {2, 4, 8, 64, 1024}) {
    const Plan plan = plan_of(settings(ranks), ranks, llama_8b(), llama_8b());
    const double share = parameters / static_cast<double>(ranks);
    EXPECT_NEAR(highest(plan, Category::kMaster), 4 * share, 0.01 * 4 * share + rest) << ranks;
    EXPECT_NEAR(highest(plan, Category::kMoments), 8 * share, 0.01 * 8 * share + 2 * rest) << ranks;
    EXPECT_NEAR(highest(plan, Category::kTeacher), 2 * share, 0.01 * 2 * share + rest) << ranks;
    EXPECT_EQ(plan.shape.shard, ranks);
  }
}

TEST(Plan, ReplicasShareNothing) {
  config::Config config = settings(16);
  config.parallel.replicate = 2;
  const Plan hybrid = plan_of(config, 16, llama_8b(), llama_8b());
  const Plan eight = plan_of(settings(8), 8, llama_8b(), llama_8b());
  EXPECT_EQ(hybrid.shape.shard, 8);
  EXPECT_EQ(hybrid.shape.replicate, 2);
  EXPECT_EQ(highest(hybrid, Category::kMaster), highest(eight, Category::kMaster));
  EXPECT_EQ(hybrid.memory.peak(), eight.memory.peak());
  EXPECT_GT(hybrid.time.total(), eight.time.total()); // their gradients are added up
}

TEST(Plan, AWholeTeacherTakesItsBytesOnEveryRankAndGathersNothing) {
  config::Config config = settings(4);
  const Plan sharded = plan_of(config, 4, llama_1b(), llama_8b());
  config.parallel.shard_teacher = false;
  const Plan whole = plan_of(config, 4, llama_1b(), llama_8b());
  const double teacher = 2 * 8.03e9;
  EXPECT_NEAR(highest(whole, Category::kTeacher), teacher, 0.01 * teacher);
  EXPECT_NEAR(highest(sharded, Category::kTeacher), teacher / 4, 0.02 * teacher / 4);
  EXPECT_EQ(highest(whole, Category::kMaster), highest(sharded, Category::kMaster));
  EXPECT_LT(highest(whole, Category::kSlots), highest(sharded, Category::kSlots)); // of the student's units alone
  EXPECT_LT(whole.time.communication, 0.5 * sharded.time.communication);
  EXPECT_LT(whole.time.total(), sharded.time.total());
}

TEST(Plan, AWholeTeacherThatDoesNotFitIsToBeSharded) {
  config::Config config = settings(8, "recompute");
  config.parallel.shard_teacher = false;
  config.memory.limit_gib = 16;
  const Plan plan = plan_of(config, 8, llama_1b(), llama_8b());
  EXPECT_FALSE(plan.fits());
  ASSERT_FALSE(plan.changes.empty());
  EXPECT_THAT(plan.changes.front().text(), testing::HasSubstr("parallel.shard_teacher=true"));
}

// docs/models.md: a Llama-8B block keeps about 92 KiB a token, its input 8 KiB.
TEST(Plan, KeptActivationsFollowThePolicy) {
  const double tokens = 8192, layers = 32;
  const auto saved = [&](const std::string& activation) {
    return static_cast<double>(
        highest(plan_of(settings(4, activation), 4, llama_8b(), llama_8b()), Category::kActivations));
  };
  EXPECT_NEAR(saved("keep"), layers * tokens * 92 * 1024, 0.01 * layers * tokens * 92 * 1024);
  EXPECT_NEAR(saved("recompute"), layers * tokens * 8 * 1024, 0.01 * layers * tokens * 8 * 1024);
  EXPECT_NEAR(saved("offload"), 2 * tokens * 92 * 1024, 0.02 * 2 * tokens * 92 * 1024); // one leaves, one is made
  EXPECT_LT(saved("offload_input"), 4 * tokens * 8 * 1024);
}

TEST(Plan, OffloadedBytesAreOnTheHost) {
  const Plan plan = plan_of(settings(4, "offload*16,keep*16"), 4, llama_8b(), llama_8b());
  EXPECT_NEAR(static_cast<double>(plan.memory.host_activations), 16.0 * 8192 * 92 * 1024, 0.01 * 16 * 8192 * 92 * 1024);
  EXPECT_EQ(plan_of(settings(4), 4, llama_8b(), llama_8b()).memory.host_activations, 0);
}

// 8B <- 8B on two H100, 8192 tokens on each and every block recomputed, was measured with both allocators: 71.0 GiB of
// tensors, 71.9 reserved with expandable segments. With segments of fixed size it ran although the device was full at
// times, with 76.6 reserved.
TEST(Plan, WhatRunsOnTwoH100Fits) {
  config::Config config = settings(2, "recompute");
  config.parallel.gather = config::Gather::kNccl;
  const models::ModelConfig model = llama_8b();
  Target target;
  target.world_size = 2;
  const auto plan_with = [&](device::AllocatorKind kind) {
    target.environment.allocator.kind = kind;
    return *make_plan(
        {config, model, trainer::TeacherSpec::running({model, nullptr}), target, *machine_named("H100-SXM")});
  };
  const Plan expandable = plan_with(device::AllocatorKind::kExpandable);
  const Plan segments = plan_with(device::AllocatorKind::kSegments);
  EXPECT_NEAR(static_cast<double>(expandable.memory.peak()) / kGiB, 71.0, 0.1);
  EXPECT_NEAR(static_cast<double>(expandable.memory.reserved_peak) / kGiB, 71.9, 0.5);
  EXPECT_EQ(expandable.memory.give_backs, 0);
  EXPECT_TRUE(expandable.fits());
  EXPECT_NEAR(static_cast<double>(segments.memory.reserved_peak) / kGiB, 76.6, 0.5);
  EXPECT_TRUE(segments.fits()) << testing::PrintToString(segments.overflows);
}

TEST(Plan, WhatOtherProcessesUseIsNotThere) {
  config::Config config = settings(1);
  const models::ModelConfig student = llama_1b(), teacher = llama_8b();
  Target target;
  const auto plan_beside = [&](double others_gib) {
    target.environment.outside = device::OutsideMemory{
        .context = int64_t{1} << 30, .others = static_cast<int64_t>(others_gib * kGiB), .measured = true};
    return *make_plan(
        {config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, *machine_named("H100-SXM")});
  };
  const Plan alone = plan_beside(0), beside = plan_beside(30), crowded = plan_beside(50);
  EXPECT_EQ(alone.memory.device_bytes() - alone.memory.reserved_peak, int64_t{1} << 30);
  EXPECT_TRUE(alone.fits());
  EXPECT_TRUE(beside.fits()); // 44 of 49.2 GiB
  EXPECT_EQ(beside.memory.peak(), alone.memory.peak());
  EXPECT_NEAR(static_cast<double>(alone.device_bytes - beside.device_bytes), 30 * kGiB, 1);
  EXPECT_FALSE(crowded.fits());
  EXPECT_THAT(alone.text(), testing::HasSubstr("measured"));
  EXPECT_THAT(beside.text(), testing::HasSubstr("beside 30.0 GiB of other processes"));
}

TEST(Plan, PinnedHostMemoryTakesPageTablesOnTheDevice) {
  config::Config config = settings(1);
  config.memory.optimizer = models::StatePlace::kHost;
  const Plan plan = plan_of(config, 1, llama_1b(), llama_8b());
  double parameters = 0;
  for (const models::UnitLayout& unit : models::unit_layouts(llama_1b())) {
    parameters += static_cast<double>(unit.numel);
  }
  EXPECT_NEAR(static_cast<double>(plan.memory.page_tables()), 12 * parameters / 4096 * 8, 1e4);
  EXPECT_EQ(
      plan.memory.device_bytes(), plan.memory.reserved_peak + plan.memory.outside.total() + plan.memory.page_tables());
}

TEST(Plan, Float8NeedsAMachineThatHasIt) {
  config::Config config = settings(1);
  config.teacher.dtype = config::ComputeDtype::kFloat8;
  const models::ModelConfig student = llama_1b(), teacher = llama_8b();
  const auto plan = make_plan(
      {config, student, trainer::TeacherSpec::running({teacher, nullptr}), Target{}, *machine_named("A100-SXM-80")});
  EXPECT_THAT(
      std::string(plan.status().message()),
      testing::AllOf(testing::HasSubstr("teacher.dtype: float8"), testing::HasSubstr("NVIDIA A100-SXM4-80GB")));
}

TEST(Plan, AThousandRanksWithReplicas) {
  config::Config config = settings(1024, "auto");
  config.parallel.replicate = 128;
  const Plan plan = plan_of(config, 1024, llama_8b(), llama_8b());
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.shape.shard, 8);
  EXPECT_EQ(
      highest(plan, Category::kMaster), highest(plan_of(settings(8), 8, llama_8b(), llama_8b()), Category::kMaster));
  EXPECT_GT(
      plan.memory.outside.communicators, plan_of(settings(8), 8, llama_8b(), llama_8b()).memory.outside.communicators);
  const Plan flat = plan_of(settings(1024), 1024, llama_8b(), llama_8b());
  EXPECT_LT(flat.memory.peak(), plan.memory.peak());
  EXPECT_GT(plan.time.tokens_per_second, flat.time.tokens_per_second); // gathers stay on the node
}

TEST(Plan, AutomaticPoliciesFitTheBudgetAndAreNoSlowerThanUniformOnes) {
  using enum models::ActivationPolicy;
  for (const double budget : {39.0, 40.0, 42.5, 45.0, 47.0, 50.0, 52.5, 55.0, 58.0, 62.0, 70.0, 100.0}) {
    config::Config config = settings(4, "auto");
    config.memory.budget_gib = budget;
    const Plan best = plan_of(config, 4, llama_8b(), llama_8b());
    EXPECT_TRUE(best.fits()) << budget;
    EXPECT_LE(best.memory.peak(), budget * kGiB);
    EXPECT_EQ(best.mixes, 6545); // 32 blocks under 4 policies: (35 choose 3)
    for (const models::ActivationPolicy policy : {kKeep, kRecompute, kOffload, kOffloadInput}) {
      config.memory.activation = policy;
      const Plan uniform = plan_of(config, 4, llama_8b(), llama_8b());
      if (uniform.fits()) {
        EXPECT_LE(best.time.total(), uniform.time.total() * 1.000001) << budget << " " << base::enum_name(policy);
      }
    }
  }
}

TEST(Plan, WhatDoesNotFitComesWithChangesThatDo) {
  config::Config config = settings(2);
  config.memory.budget_gib = 60;
  const Plan plan = plan_of(config, 2, llama_8b(), llama_8b());
  ASSERT_FALSE(plan.fits());
  EXPECT_THAT(plan.overflows[0], testing::HasSubstr("memory.budget_gib"));
  ASSERT_FALSE(plan.changes.empty());
  EXPECT_LE(plan.changes.size(), 3U);
  for (size_t i = 0; i < plan.changes.size(); ++i) {
    EXPECT_LE(plan.changes[i].peak_bytes, 60 * kGiB) << plan.changes[i].text();
    if (i > 0) {
      EXPECT_GE(plan.changes[i].seconds_per_token, plan.changes[i - 1].seconds_per_token);
    }
  }
}

TEST(Plan, WhatTrainsDifferentlyIsAdvisedLast) {
  config::Config config = settings(2);
  config.memory.budget_gib = 72; // less than 80, by more than the gradients' 7 and less than the moments' 15
  const Plan plan = plan_of(config, 2, llama_8b(), llama_8b());
  ASSERT_FALSE(plan.fits());
  ASSERT_GT(plan.changes.size(), 1U);
  EXPECT_EQ(plan.changes.back().text(), "optimizer.moments=bfloat16");
  for (size_t i = 0; i + 1 < plan.changes.size(); ++i) {
    EXPECT_THAT(plan.changes[i].text(), testing::Not(testing::HasSubstr("bfloat16")));
  }
}

TEST(Plan, GradientsInBFloat16TakeHalfTheMemoryAndAUnitOfFp32) {
  config::Config config = settings(1);
  config.train.global_batch_size = 8; // four micro-batches
  const Plan fp32 = plan_of(config, 1, llama_1b(), llama_8b());
  config.optimizer.gradients = config::RoundedDtype::kBFloat16;
  const Plan bf16 = plan_of(config, 1, llama_1b(), llama_8b());
  using device::Category;
  EXPECT_NEAR(highest(bf16, Category::kGradients), 0.5 * highest(fp32, Category::kGradients), 1 << 16);
  EXPECT_EQ(highest(fp32, Category::kSlots), 0);
  EXPECT_NEAR(highest(bf16, Category::kSlots), 4.0 * 128256 * 2048, 1 << 20) << "the lm_head's";
  EXPECT_LT(bf16.memory.peak(), fp32.memory.peak());
  EXPECT_NEAR(bf16.time.total() / fp32.time.total(), 1, 0.02);
}

TEST(Plan, AccumulationHoldsGradientShardsBesideActivations) {
  config::Config config = settings(4);
  config.train.global_batch_size = 32; // four micro-batches
  const Plan four = plan_of(config, 4, llama_8b(), llama_8b());
  const Plan one = plan_of(settings(4), 4, llama_8b(), llama_8b());
  EXPECT_EQ(four.shape.micro_batches, 4);
  // The shards of the first micro-batch, 8 GB, and no whole gradients.
  const auto more = static_cast<double>(four.memory.peak() - one.memory.peak());
  EXPECT_GT(more, 7.5e9);
  EXPECT_LT(more, 10e9);
  config.parallel.accumulate = config::Accumulate::kKeepFull;
  EXPECT_GT(plan_of(config, 4, llama_8b(), llama_8b()).memory.peak(), one.memory.peak() + int64_t{25'000'000'000});
  EXPECT_NEAR(four.time.tokens_per_second / one.time.tokens_per_second, 1.0, 0.05);
}

// Measured on H200s (docs/memory.md, docs/performance.md); the plan is to be within ten per cent.
TEST(Plan, SpeedsAreThoseMeasured) {
  const auto expect = [](int64_t ranks, const models::ModelConfig& student, const std::string& activation,
                         double tokens_per_second, int64_t sequences = 2, int64_t vocab = 128256,
                         models::StatePlace optimizer = models::StatePlace::kDevice) {
    config::Config config = settings(ranks, activation);
    config.train.micro_batch_size = sequences;
    config.train.global_batch_size = sequences * ranks;
    config.memory.optimizer = optimizer;
    models::ModelConfig own = student, teacher = llama_8b();
    own.vocab_size = teacher.vocab_size = vocab;
    const Plan plan = plan_of(config, ranks, own, teacher);
    EXPECT_NEAR(plan.time.tokens_per_second, tokens_per_second, 0.1 * tokens_per_second)
        << ranks << " ranks, hidden " << student.hidden_size << ", " << activation << ", optimizer on "
        << base::enum_name(optimizer);
  };
  const models::ModelConfig llama_3b = llama(3072, 8192, 28, 24, 8, 128);
  expect(1, llama_1b(), "keep", 23181);
  expect(1, llama_1b(), "recompute", 22903, 2, 32000);
  expect(1, llama_1b(), "keep", 19289, 2, 262144);
  expect(1, llama_3b, "keep", 14449);
  expect(1, llama_3b, "offload", 10473);
  expect(2, llama_8b(), "keep", 16713);
  expect(2, llama_8b(), "recompute", 14478);
  expect(4, llama_8b(), "keep", 32056);
  expect(4, llama_8b(), "recompute", 27896);
  expect(4, llama_8b(), "offload", 20584);
  expect(4, llama_8b(), "offload_input", 27871);
  expect(4, llama_8b(), "keep", 34792, 4);
  expect(4, llama_3b, "keep", 52908);
  expect(4, llama_1b(), "keep", 83168);
  expect(1, llama_1b(), "keep", 18005, 2, 128256, models::StatePlace::kHost);
  expect(2, llama_3b, "keep", 18247, 2, 128256, models::StatePlace::kHost);
}

TEST(Plan, CountsTheTokensThatTheTeacherReads) {
  const auto plan = [](bool stream, int64_t teacher_seq_len) {
    config::Config config = settings(1, "recompute");
    config.data.packing = data::PackingMode::kPack;
    config.data.teacher_seq_len = teacher_seq_len;
    const models::ModelConfig model = llama_1b();
    Target target;
    auto made =
        make_plan({config, model, trainer::TeacherSpec::running({model, nullptr}), target, h200(), 0, 0, stream});
    TORCH_CHECK(made.ok(), made.status().ToString());
    return *std::move(made);
  };
  const auto teacher_seconds = [](const Plan& p) {
    return p.time.phases[static_cast<size_t>(metrics::Phase::kTeacher)];
  };
  const auto teacher_peak = [](const Plan& p) {
    return p.memory.use.phases[static_cast<size_t>(device::MemoryPhase::kTeacher)].bytes;
  };
  const Plan none = plan(false, 0), unused = plan(false, 8192), same = plan(true, 0), twice = plan(true, 8192);
  EXPECT_EQ(unused.time.total(), none.time.total()) << "the length matters with a stream only";
  // Twice the tokens, of which each attends to twice as many.
  EXPECT_GT(teacher_seconds(twice), 2 * teacher_seconds(none));
  EXPECT_LT(teacher_seconds(twice), 4 * teacher_seconds(none));
  EXPECT_EQ(
      twice.time.phases[static_cast<size_t>(metrics::Phase::kForward)],
      none.time.phases[static_cast<size_t>(metrics::Phase::kForward)]);
  // During the teacher's pass the gathered hidden states exist, and twice their bytes of all others.
  const int64_t hidden = int64_t{2} * 4096 * 2048 * 2;
  EXPECT_GE(teacher_peak(same), teacher_peak(none));
  EXPECT_GT(teacher_peak(twice), teacher_peak(none) + 2 * hidden);
}

TEST(Plan, ImpossibleRanksNameTheKey) {
  config::Config config = settings(4);
  config.parallel.replicate = 3;
  Target target;
  target.world_size = 4;
  const models::ModelConfig model = llama_1b();
  const auto plan = make_plan({config, model, trainer::TeacherSpec::running({model, nullptr}), target, h200()});
  EXPECT_THAT(std::string(plan.status().message()), testing::HasSubstr("parallel.replicate"));
}

} // namespace
} // namespace distill::plan
