#include "losses/head/chunk_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "losses/option_ranges.h"
#include "tests/losses/head/chunk_shapes.h"

namespace distill::losses::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ChunkPolicy, NeverExceedsTheCap) {
  for (const int64_t vocab : {1, 257, 32000, 50257, 128256, 151936, 262144, 1000003}) {
    for (const int64_t cap : {16, 17, 100, 512, 1024, 4096, 100000}) {
      for (const int64_t chunk : {0, 1, 300, 2048, 100000}) {
        for (const bool needs_grad : {false, true}) {
          HeadShape shape = llama(vocab);
          shape.needs_grad = needs_grad;
          const auto plan = resolve_chunks({.chunk_size = chunk, .memory_cap_mb = cap, .min_chunk_size = 777}, shape);
          ASSERT_TRUE(plan.ok()) << plan.status();
          const std::vector<int64_t>& rows = plan->logits_rows;
          EXPECT_LE(plan->bytes, cap * kMiB);
          EXPECT_EQ(plan->bytes, scratch_bytes(shape, rows));
          EXPECT_EQ(plan->arena_bytes, plan->bytes);
          EXPECT_EQ(plan->gradient_rows, std::accumulate(rows.begin(), rows.end(), int64_t{0}));
          EXPECT_GE(rows.back(), 1);
          if (chunk > 0) {
            EXPECT_LE(rows.front(), chunk);
            EXPECT_THAT(rows, Each(rows.front()));
          }
        }
      }
    }
  }
}

TEST(ChunkPolicy, DefaultsForLlama) {
  const auto plan = resolve_chunks({}, llama());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->logits_rows, ElementsAre(512, 512, 512, 512, 384));
  EXPECT_EQ(plan->gradient_rows, 2432);
  const auto large = resolve_chunks({.memory_cap_mb = 4096}, llama());
  EXPECT_THAT(large->logits_rows, ElementsAre(2048, 2048));
}

// So that a batch with more ignored tokens takes no more memory than was planned for others.
TEST(ChunkPolicy, IgnoredTokensOnlyCutThePlanShort) {
  for (const int64_t vocab : {32000, 128256, 201088, 262208}) {
    for (const int64_t chunk : {0, 300}) {
      for (const int64_t tokens : {500, 4096, 8192}) {
        HeadShape shape = llama(vocab);
        shape.tokens = tokens;
        shape.gathers_rows = true;
        const auto all = resolve_chunks({.chunk_size = chunk}, shape);
        int64_t last = all->bytes;
        for (shape.ignored_tokens = 1; shape.ignored_tokens <= tokens; shape.ignored_tokens += 97) {
          const auto plan = resolve_chunks({.chunk_size = chunk}, shape);
          ASSERT_TRUE(plan.ok());
          EXPECT_LE(plan->bytes, last);
          last = plan->bytes;
          EXPECT_EQ(plan->gradient_rows, std::min(all->gradient_rows, tokens - shape.ignored_tokens));
          const std::vector<int64_t>& rows = plan->logits_rows;
          ASSERT_LE(rows.size(), all->logits_rows.size());
          EXPECT_TRUE(std::equal(rows.begin(), rows.end() - 1, all->logits_rows.begin()));
          EXPECT_LE(rows.back(), all->logits_rows[rows.size() - 1]);
        }
      }
    }
  }
}

TEST(ChunkPolicy, ExplicitChunkIsKeptWhereItFitsAndCutToAPowerOfTwoWhereNot) {
  EXPECT_THAT(resolve_chunks({.chunk_size = 300}, llama())->logits_rows, Each(300));
  EXPECT_THAT(resolve_chunks({.chunk_size = 3000}, llama())->logits_rows, Each(512));
  EXPECT_THAT(resolve_chunks({.chunk_size = 300, .memory_cap_mb = 100}, llama())->logits_rows, Each(64));
  EXPECT_EQ(resolve_chunks({.chunk_size = 256}, llama())->gradient_rows, 3072); // as many as the cap allows
  EXPECT_EQ(resolve_chunks({.chunk_size = 300, .memory_cap_mb = 100000}, llama())->gradient_rows, 3900);
}

TEST(ChunkPolicy, CapWinsOverMinChunkSize) {
  const auto plan = resolve_chunks({.memory_cap_mb = 10, .min_chunk_size = 4096}, llama());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->logits_rows.front(), 8); // no measured size fits
}

TEST(ChunkPolicy, AutomaticSizeIsNotBelowTheMinimumWhereTheCapAllowsIt) {
  const std::vector<int64_t> rows = resolve_chunks({.min_chunk_size = 600}, llama())->logits_rows;
  EXPECT_GE(rows.front(), 600);
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end() - 1, [](int64_t r) { return r >= 600; }));
}

TEST(ChunkPolicy, NoMoreRowsThanTokens) {
  HeadShape shape = llama();
  shape.tokens = 100;
  const auto plan = resolve_chunks({}, shape);
  EXPECT_THAT(plan->logits_rows, ElementsAre(100));
  EXPECT_EQ(plan->gradient_rows, 100);
  shape.tokens = 0;
  EXPECT_THAT(resolve_chunks({}, shape)->logits_rows, ElementsAre(1));
}

TEST(ChunkPolicy, TooSmallACapNamesTheSmallestThatWorks) {
  const HeadShape shape = llama(3000000);
  const auto plan = resolve_chunks({.memory_cap_mb = 16}, shape);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), ::testing::HasSubstr("smallest value that works is 29"));
  EXPECT_TRUE(resolve_chunks({.memory_cap_mb = 29}, shape).ok());
  EXPECT_FALSE(resolve_chunks({.memory_cap_mb = 28}, shape).ok());
}

TEST(ChunkPolicy, HugeShapesAreRefused) {
  HeadShape shape = llama(int64_t{1} << 32);
  shape.tokens = int64_t{1} << 24;
  EXPECT_FALSE(resolve_chunks({}, shape).ok());
}

TEST(ChunkPolicy, WhatTheCpuAllocatesBesideTheArenaIsUnderTheCapToo) {
  HeadShape shape = llama(32000);
  shape.row_threads = 64;
  shape.row_thread_bytes = 256000;
  const auto plan = resolve_chunks({.memory_cap_mb = 20}, shape);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->bytes, 20 * kMiB);
  EXPECT_LT(plan->arena_bytes, plan->bytes);
}

TEST(ChunkPolicy, CountsTheChunksOfACall) {
  const ChunkPlan plan{.logits_rows = {384, 320, 256}, .gradient_rows = 960};
  EXPECT_EQ(plan.num_chunks(0), 0);
  EXPECT_EQ(plan.num_chunks(384), 1);
  EXPECT_EQ(plan.num_chunks(385), 2);
  EXPECT_EQ(plan.num_chunks(2 * 960), 6);
  EXPECT_EQ(plan.num_chunks(2 * 960 + 705), 9);
  EXPECT_EQ(plan.num_groups(960), 1);
  EXPECT_EQ(plan.num_groups(961), 2);
  EXPECT_EQ(ChunkPlan{}.num_chunks(10), 0);
  EXPECT_EQ(ChunkPlan{}.num_groups(10), 0);
}

TEST(ChunkPolicy, DescriptionNamesTheNumbers) {
  EXPECT_EQ(
      resolve_chunks({}, llama())->description,
      "loss head: logits of 512 tokens at a time, gradients of 2432, 1002.0 MiB of scratch (cap 1024 MiB, vocabulary "
      "128256)");
  EXPECT_EQ(
      resolve_chunks({.chunk_size = 512}, llama())->description,
      "loss head: logits of 512 tokens at a time, gradients of 2048, 1002.0 MiB of scratch (cap 1024 MiB, vocabulary "
      "128256)");
}

TEST(ChunkPolicy, InvalidOptionsAreAllNamed) {
  const auto status = validate(ChunkOptions{.chunk_size = -1, .memory_cap_mb = 0, .min_chunk_size = 0});
  for (const char* key : {"chunk_size", "memory_cap_mb", "min_chunk_size"}) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(key));
  }
}

TEST(LossOptions, OutOfRangeValuesAreAllNamed) {
  const auto status = validate(LossOptions{
      .beta = 1.5,
      .skew_alpha = 1.0,
      .temperature = 0,
      .hard_weight = -1,
      .soft_weight = NAN,
      .label_smoothing = 1,
      .z_loss = -1,
      .student_softcap = -1,
      .teacher_softcap = INFINITY});
  for (const char* key :
       {"beta", "skew_alpha", "temperature", "hard_weight", "soft_weight", "label_smoothing", "z_loss",
        "student_softcap", "teacher_softcap"}) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(key));
  }
  EXPECT_TRUE(validate(LossOptions{}).ok());
}

TEST(LossOptions, NumbersWhoseInverseOrSquareLeavesFloat32AreRefused) {
  for (const double value : {1e-40, 1e-11, 1e11, 1e40}) {
    EXPECT_THAT(
        std::string(validate(LossOptions{.temperature = value}).message()),
        ::testing::HasSubstr("temperature: expected a number above 0, in [1e-10, 1e+10], found"));
    EXPECT_THAT(
        std::string(validate(LossOptions{.student_softcap = value}).message()),
        ::testing::HasSubstr("student_softcap: expected 0 (off), or a number above 0, in [1e-10, 1e+10], found"));
  }
  for (const RealOption& option : kRealOptions) {
    for (const double value : {-1.0, 1e40, double{NAN}, double{INFINITY}}) {
      LossOptions options;
      options.*option.value = value;
      EXPECT_THAT(std::string(validate(options).message()), ::testing::StartsWith(option.key)) << value;
    }
    for (const double value : {option.range.min, option.range.max}) {
      LossOptions options;
      options.*option.value = value;
      EXPECT_EQ(validate(options).ok(), !option.range.max_excluded || value < option.range.max) << option.key;
    }
  }
}

TEST(LossOptions, EveryNumberHasARange) {
  LossOptions loss;
  for (const RealOption& option : kRealOptions) {
    loss.*option.value = NAN;
  }
  const double numbers[] = {loss.beta,        loss.skew_alpha,      loss.temperature,
                            loss.hard_weight, loss.soft_weight,     loss.label_smoothing,
                            loss.z_loss,      loss.student_softcap, loss.teacher_softcap};
  EXPECT_THAT(numbers, ::testing::Each(::testing::IsNan()));
}

TEST(ChunkOptions, ACapThatIsNoNumberOfBytesIsRefused) {
  for (const IntegerOption& option : kIntegerOptions) {
    for (const int64_t value : {option.range.min - 1, option.range.max + 1, std::numeric_limits<int64_t>::max()}) {
      ChunkOptions options;
      options.*option.value = value;
      EXPECT_THAT(std::string(validate(options).message()), ::testing::StartsWith(option.key)) << value;
    }
  }
}

} // namespace
} // namespace distill::losses::testing
