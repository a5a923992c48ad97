#include "losses/head/chunk_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::losses {
namespace {

constexpr int64_t kMiB = 1 << 20;

HeadShape llama(int64_t vocab = 128256) {
  return {.tokens = 16384, .vocab = vocab, .student_hidden = 4096, .teacher_hidden = 4096};
}

TEST(ChunkPolicy, NeverExceedsTheCap) {
  for (const int64_t vocab : {1, 257, 32000, 50257, 128256, 151936, 262144, 1000003}) {
    for (const int64_t cap : {16, 17, 100, 512, 1024, 4096, 100000}) {
      for (const int64_t chunk : {0, 1, 300, 2048, 100000}) {
        for (const bool needs_grad : {false, true}) {
          HeadShape shape = llama(vocab);
          shape.needs_grad = needs_grad;
          const auto plan = resolve_chunks({.chunk_size = chunk, .memory_cap_mb = cap, .min_chunk_size = 777}, shape);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_LE(plan->bytes, cap * kMiB);
          EXPECT_EQ(plan->bytes, scratch_bytes(shape, plan->logits_rows, plan->gradient_rows));
          EXPECT_EQ(plan->arena_bytes, plan->bytes);
          EXPECT_GE(plan->logits_rows, 1);
          EXPECT_GE(plan->gradient_rows, plan->logits_rows);
          if (chunk > 0) {
            EXPECT_LE(plan->logits_rows, chunk);
          }
        }
      }
    }
  }
}

TEST(ChunkPolicy, DefaultsForLlamaUseTwoSizes) {
  const auto plan = resolve_chunks({}, llama());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->logits_rows, 512);
  EXPECT_EQ(plan->gradient_rows, 2048);
  const auto large = resolve_chunks({.memory_cap_mb = 4096}, llama());
  EXPECT_EQ(large->logits_rows, 2048);
  EXPECT_EQ(large->gradient_rows, 4096);
}

TEST(ChunkPolicy, MoreMemoryIsNeverWorse) {
  double last = 1e30;
  for (int64_t cap = 1; cap < 6000; cap += 7) {
    const auto plan = resolve_chunks({.memory_cap_mb = cap, .min_chunk_size = 1}, llama());
    if (!plan.ok()) {
      continue;
    }
    // Balanced chunks may be smaller than what fits, by less than one of their share.
    const double cost = relative_cost(llama(), plan->logits_rows, plan->gradient_rows);
    EXPECT_LE(cost, last * 1.1) << cap;
    last = std::min(last, cost);
  }
}

TEST(ChunkPolicy, AFewColumnsMoreDoNotCostAChunk) {
  // 1024 MiB hold exactly 256 tokens' logits and 1024 tokens' gradients of 262144 columns.
  HeadShape shape = llama(262144);
  const auto narrow = resolve_chunks({}, shape);
  const double cost = relative_cost(shape, narrow->logits_rows, narrow->gradient_rows);
  shape.vocab += 64;
  const auto wide = resolve_chunks({}, shape);
  EXPECT_LE(relative_cost(shape, wide->logits_rows, wide->gradient_rows), 1.03 * cost)
      << wide->logits_rows << " " << wide->gradient_rows;
}

TEST(ChunkPolicy, TheWiderTheTeacherTheLargerTheChunksOfLogits) {
  // The more the logits products count beside the student's weight gradient, the more of the cap they get.
  int64_t last = 0;
  for (const int64_t teacher_hidden : {512, 4096, 16384, 65536}) {
    HeadShape shape = llama();
    shape.teacher_hidden = teacher_hidden;
    const int64_t rows = resolve_chunks({.memory_cap_mb = 2048}, shape)->logits_rows;
    EXPECT_GE(rows, last) << teacher_hidden;
    last = rows;
  }
  EXPECT_GT(last, 1024);
}

TEST(ChunkPolicy, NoOtherSizesThatFitAreEstimatedToBeFaster) {
  for (const int64_t vocab : {32000, 128256, 151936, 200064, 262208, 320000}) {
    for (const int64_t cap : {256, 1024, 4096}) {
      const HeadShape shape = llama(vocab);
      const auto plan = resolve_chunks({.memory_cap_mb = cap, .min_chunk_size = 1}, shape);
      const double cost = relative_cost(shape, plan->logits_rows, plan->gradient_rows);
      for (const int64_t rows : {128, 192, 256, 320, 384, 512, 640, 1024, 1280, 1536, 2048, 4096}) {
        const int64_t half = std::max<int64_t>(rows, plan->gradient_rows / 2);
        for (int64_t gradient_rows = rows; gradient_rows <= 4096; gradient_rows += rows) {
          if (gradient_rows >= half && scratch_bytes(shape, rows, gradient_rows) <= cap * kMiB) {
            EXPECT_LE(cost, relative_cost(shape, rows, gradient_rows) * 1.0051) << rows << " " << gradient_rows;
          }
        }
      }
    }
  }
}

TEST(ChunkPolicy, ASmallRestAtTheEndCosts) {
  HeadShape shape = llama();
  shape.tokens = 4096;
  EXPECT_LT(relative_cost(shape, 256, 1024), relative_cost(shape, 256, 1280)); // four times 1024, or a rest of 256
  EXPECT_LT(relative_cost(shape, 320, 960), relative_cost(shape, 320, 768)); // a rest of 128 in each of the chunks
}

TEST(ChunkPolicy, GradientsOfTheLogitsDtypeTakeThePlaceOfTheStudentsLogits) {
  for (const int64_t bytes : {2, 4}) {
    HeadShape shape = llama();
    shape.logits_bytes = bytes;
    shape.gradient_bytes = bytes;
    EXPECT_TRUE(gradient_in_place(shape));
    EXPECT_EQ(arena_bytes(shape, 512, 2048), shape.vocab * bytes * (2048 + 512)); // the teacher's logits beside them
    shape.needs_grad = false;
    EXPECT_FALSE(gradient_in_place(shape));
    EXPECT_EQ(arena_bytes(shape, 512, 2048), shape.vocab * bytes * 2 * 512);
  }
  EXPECT_FALSE(gradient_in_place(llama()));
  EXPECT_EQ(arena_bytes(llama(), 512, 2048), llama().vocab * (8 * 512 + 2 * 2048));
}

TEST(ChunkPolicy, WithoutGradientsTheLogitsGetTheWholeCap) {
  HeadShape shape = llama();
  shape.needs_grad = false;
  const auto plan = resolve_chunks({.memory_cap_mb = 2200}, shape);
  EXPECT_EQ(plan->logits_rows, 2048);
}

TEST(ChunkPolicy, ExplicitChunkIsKeptWhereItFitsAndCutToAPowerOfTwoWhereNot) {
  EXPECT_EQ(resolve_chunks({.chunk_size = 300}, llama())->logits_rows, 300);
  EXPECT_EQ(resolve_chunks({.chunk_size = 3000}, llama())->logits_rows, 512);
  EXPECT_EQ(resolve_chunks({.chunk_size = 300, .memory_cap_mb = 100}, llama())->logits_rows, 64);
}

TEST(ChunkPolicy, CapWinsOverMinChunkSize) {
  const auto plan = resolve_chunks({.memory_cap_mb = 10, .min_chunk_size = 4096}, llama());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->logits_rows, 8); // no measured size fits
}

TEST(ChunkPolicy, AutomaticSizeIsNotBelowTheMinimumWhereTheCapAllowsIt) {
  EXPECT_GE(resolve_chunks({.min_chunk_size = 600}, llama())->logits_rows, 600);
}

TEST(ChunkPolicy, NoMoreRowsThanTokens) {
  HeadShape shape = llama();
  shape.tokens = 100;
  const auto plan = resolve_chunks({}, shape);
  EXPECT_EQ(plan->logits_rows, 100);
  EXPECT_EQ(plan->gradient_rows, 100);
  shape.tokens = 0;
  EXPECT_EQ(resolve_chunks({}, shape)->logits_rows, 1);
}

TEST(ChunkPolicy, TooSmallACapNamesTheSmallestThatWorks) {
  const HeadShape shape = llama(3000000);
  const auto plan = resolve_chunks({.memory_cap_mb = 16}, shape);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), ::testing::HasSubstr("smallest value that works is 29"));
  EXPECT_TRUE(resolve_chunks({.memory_cap_mb = 29}, shape).ok());
  EXPECT_FALSE(resolve_chunks({.memory_cap_mb = 28}, shape).ok());
}

TEST(ChunkPolicy, HugeShapesDoNotOverflow) {
  HeadShape shape = llama(int64_t{1} << 32);
  shape.tokens = int64_t{1} << 24;
  EXPECT_FALSE(resolve_chunks({}, shape).ok());
  EXPECT_EQ(scratch_bytes(shape, 1024, 4096), (int64_t{1} << 32) * (8 * 1024 + 2 * 4096));
}

TEST(ChunkPolicy, TheRowKernelsThreadsCountButNoMoreOfThemThanRows) {
  HeadShape shape = llama(32000);
  const int64_t plain = scratch_bytes(shape, 1, 1);
  shape.row_threads = 64;
  shape.row_thread_bytes = 256000;
  EXPECT_EQ(scratch_bytes(shape, 1, 1), plain + 256000);
  EXPECT_EQ(scratch_bytes(shape, 1000, 1000) - arena_bytes(shape, 1000, 1000), 64 * 256000);
  const auto plan = resolve_chunks({.memory_cap_mb = 20}, shape);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->bytes, 20 * kMiB);
  EXPECT_LT(plan->arena_bytes, plan->bytes);
}

TEST(ChunkPolicy, EachSidesHiddenRowsCountInTheirOwnDtype) {
  HeadShape shape = llama();
  const int64_t plain = arena_bytes(shape, 3, 5);
  shape.gathers_rows = true;
  shape.teacher_hidden_bytes = 4;
  EXPECT_EQ(arena_bytes(shape, 3, 5) - plain, 3 * 4096 * 4 + 5 * 2 * 4096 * 2);
}

TEST(ChunkPolicy, DescriptionNamesTheNumbers) {
  EXPECT_EQ(
      resolve_chunks({}, llama())->description,
      "loss head: logits of 512 tokens at a time, gradients of 2048, 1002.0 MiB of scratch (cap 1024 MiB, vocabulary 128256)");
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

} // namespace
} // namespace distill::losses
