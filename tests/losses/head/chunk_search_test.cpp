#include "losses/head/chunk_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <sstream>

#include "losses/head/chunk_cost.h"
#include "tests/losses/head/chunk_shapes.h"

namespace distill::losses::testing {
namespace {

constexpr int64_t kMinimum = 256; // the default of min_chunk_size

// The least relative_cost of chunks of one measured size, with every number of them that fits.
double best_equal_cost(const HeadShape& shape, int64_t least, int64_t cap_bytes) {
  double best = 1e30;
  for (const MeasuredRows& measured : measured_logits_products()) {
    if (measured.rows < least || measured.rows > shape.tokens) {
      continue;
    }
    for (int64_t tokens = measured.rows; tokens <= std::min<int64_t>(4096, shape.tokens); tokens += measured.rows) {
      const std::vector<int64_t> chunks = equal_chunks(measured.rows, tokens);
      if (scratch_bytes(shape, chunks) <= cap_bytes) {
        best = std::min(best, relative_cost(shape, chunks));
      }
    }
  }
  return best;
}

std::vector<HeadShape> grid() {
  std::vector<HeadShape> shapes;
  for (const int64_t vocab : {1, 257, 32000, 50257, 128256, 151936, 201088, 256000, 262144, 262208, 1000003}) {
    for (const int64_t tokens : {1, 100, 2000, 4095, 8192, 10007}) {
      for (const int64_t teacher : {0, 4096}) {
        HeadShape shape = llama(vocab);
        shape.tokens = tokens;
        shape.teacher_hidden = teacher;
        shapes.push_back(shape);
        shape.gathers_rows = true;
        shape.fixed_arena_bytes = row_bytes(vocab, 4);
        shapes.push_back(shape);
        shape.gradient_bytes = 4; // in place
        shapes.push_back(shape);
        shape.row_threads = 16; // a CPU
        shape.row_thread_bytes = row_bytes(vocab, 8);
        shape.extra_bytes_per_row = 4 * 8192;
        shape.fixed_bytes = 1 << 20;
        shapes.push_back(shape);
        shape.needs_grad = false;
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

std::string text_of(const HeadShape& shape) {
  std::ostringstream out;
  out << "vocabulary " << shape.vocab << ", " << shape.tokens << " tokens, teacher " << shape.teacher_hidden
      << ", gathers " << shape.gathers_rows << ", gradient " << shape.gradient_bytes << ", threads "
      << shape.row_threads << ", needs_grad " << shape.needs_grad;
  return out.str();
}

TEST(ChunkSearch, ChunksFitNeverIncreaseAndNoneButTheLastIsBelowTheMinimum) {
  for (const HeadShape& shape : grid()) {
    for (const int64_t cap : {48, 100, 512, 1024, 4096, 100000}) {
      for (const int64_t least : {1, 256, 777, 5000}) {
        SCOPED_TRACE(text_of(shape) + ", cap " + std::to_string(cap) + ", min " + std::to_string(least));
        const std::vector<int64_t> chunks = fastest_chunks(shape, least, cap * kMiB);
        ASSERT_FALSE(chunks.empty());
        EXPECT_LE(scratch_bytes(shape, chunks), cap * kMiB);
        EXPECT_TRUE(std::is_sorted(chunks.begin(), chunks.end(), std::greater<>()));
        EXPECT_GE(chunks.back(), 1);
        const int64_t group = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
        EXPECT_LE(group, std::min(std::max<int64_t>(4096, least), shape.tokens));
        if (least <= shape.tokens && scratch_bytes(shape, least) <= cap * kMiB) {
          EXPECT_TRUE(std::all_of(chunks.begin(), chunks.end() - 1, [&](int64_t rows) { return rows >= least; }));
          EXPECT_GE(chunks.front(), least);
        }
        if (!shape.needs_grad) {
          EXPECT_EQ(chunks.size(), 1); // nothing is gathered
        }
      }
    }
  }
}

TEST(ChunkSearch, NoEqualChunksThatFitAreEstimatedToBeFaster) {
  for (const HeadShape& shape : grid()) {
    for (const int64_t cap : {48, 256, 1024, 4096}) {
      for (const int64_t least : {int64_t{1}, kMinimum}) {
        const double cost = relative_cost(shape, fastest_chunks(shape, least, cap * kMiB));
        EXPECT_LE(cost, 1.00101 * best_equal_cost(shape, least, cap * kMiB))
            << text_of(shape) << ", cap " << cap << ", min " << least;
      }
    }
  }
}

// Every sequence of measured sizes that never increases and fits.
TEST(ChunkSearch, NoOtherChunksOfMeasuredSizesAreEstimatedToBeFaster) {
  for (const int64_t vocab : {200064, 262208, 320000}) {
    for (const bool gathers : {false, true}) {
      HeadShape shape = llama(vocab);
      shape.tokens = 8192;
      shape.gathers_rows = gathers;
      const double cost = relative_cost(shape, fastest_chunks(shape, 192, 1024 * kMiB));
      std::vector<int64_t> chunks;
      int64_t tried = 0;
      const std::function<void(int64_t)> extend = [&](int64_t largest) {
        for (const MeasuredRows& measured : measured_logits_products()) {
          if (measured.rows < 192 || measured.rows > largest) {
            continue;
          }
          chunks.push_back(measured.rows);
          if (scratch_bytes(shape, chunks) <= 1024 * kMiB) {
            ++tried;
            EXPECT_LE(cost, 1.00101 * relative_cost(shape, chunks)) << vocab << ::testing::PrintToString(chunks);
            extend(measured.rows);
          }
          chunks.pop_back();
        }
      };
      extend(4096);
      EXPECT_GT(tried, 10);
    }
  }
}

// By the measured times of all products, of which the hidden gradient's takes 1.
TEST(ChunkSearch, WideVocabulariesGainByChunksThatBecomeSmaller) {
  struct Wide {
    int64_t vocab, student, teacher;
    double gain;
  };
  for (const Wide& wide :
       {Wide{201088, 2880, 2880, 0.03}, Wide{256000, 2304, 3584, 0.02}, Wide{262144, 2560, 3840, 0.02},
        Wide{262208, 2560, 3840, 0.03}}) {
    const HeadShape shape{
        .tokens = 8192, .vocab = wide.vocab, .student_hidden = wide.student, .teacher_hidden = wide.teacher};
    const double cost = relative_cost(shape, fastest_chunks(shape, kMinimum, 1024 * kMiB));
    const auto hidden_gradient = static_cast<double>(wide.student);
    EXPECT_LT(
        cost + hidden_gradient, (1 - wide.gain) * (best_equal_cost(shape, kMinimum, 1024 * kMiB) + hidden_gradient))
        << wide.vocab;
  }
}

TEST(ChunkSearch, TheTokensOfACallAreSharedEvenlyAmongItsGroups) {
  // 7 groups of at least 1171 tokens, and not 8 of which the last one has a few tokens.
  for (const int64_t vocab : {262144, 262208}) {
    HeadShape shape{.tokens = 8192, .vocab = vocab, .student_hidden = 2560, .teacher_hidden = 3840};
    EXPECT_THAT(fastest_chunks(shape, kMinimum, 1024 * kMiB), ::testing::ElementsAre(384, 320, 256, 211));
  }
}

TEST(ChunkSearch, MoreMemoryIsNeverWorse) {
  double last = 1e30;
  for (int64_t cap = 2; cap < 6000; cap += 7) {
    const double cost = relative_cost(llama(), fastest_chunks(llama(), 1, cap * kMiB));
    EXPECT_LE(cost, last * 1.0011) << cap;
    last = std::min(last, cost);
  }
}

TEST(ChunkSearch, AFewColumnsMoreDoNotCostAChunk) {
  // 1024 MiB hold exactly 256 tokens' logits and 1024 tokens' gradients of 262144 columns.
  const double cost = relative_cost(llama(), fastest_chunks(llama(262144), kMinimum, 1024 * kMiB));
  const std::vector<int64_t> wide = fastest_chunks(llama(262208), kMinimum, 1024 * kMiB);
  EXPECT_LE(relative_cost(llama(), wide), 1.01 * cost) << ::testing::PrintToString(wide);
}

TEST(ChunkSearch, TheWiderTheTeacherTheLargerTheChunksOfLogits) {
  // The more the logits products count beside the student's weight gradient, the more of the cap they get.
  bool grows = false;
  for (const int64_t cap : {512, 768, 1536, 2048, 3072}) {
    int64_t last = 0;
    for (const int64_t teacher_hidden : {512, 4096, 16384, 65536}) {
      HeadShape shape = llama();
      shape.teacher_hidden = teacher_hidden;
      const int64_t rows = fastest_chunks(shape, kMinimum, cap * kMiB).front();
      EXPECT_GE(rows, last) << cap << " MiB, " << teacher_hidden;
      grows = grows || (last > 0 && rows > last);
      last = rows;
    }
  }
  EXPECT_TRUE(grows);
}

TEST(ChunkSearch, WithoutGradientsTheLogitsGetTheWholeCap) {
  HeadShape shape = llama();
  shape.needs_grad = false;
  EXPECT_THAT(fastest_chunks(shape, kMinimum, 2200 * kMiB), ::testing::ElementsAre(2048));
}

TEST(ChunkSearch, AMinimumThatWasNotMeasuredMayBeASize) {
  HeadShape shape = llama();
  shape.tokens = 5000;
  EXPECT_THAT(fastest_chunks(shape, 4500, 100000 * kMiB), ::testing::ElementsAre(::testing::AnyOf(4500, 5000)));
}

TEST(ChunkSearch, EqualChunksAreAsManyAsFit) {
  const HeadShape shape = llama();
  for (const int64_t rows : {1, 100, 512}) {
    const std::vector<int64_t> chunks = most_equal_chunks(shape, rows, 1 << 20, 1024 * kMiB);
    EXPECT_THAT(chunks, ::testing::Each(rows));
    EXPECT_LE(scratch_bytes(shape, chunks), 1024 * kMiB);
    EXPECT_GT(scratch_bytes(shape, std::vector<int64_t>(chunks.size() + 1, rows)), 1024 * kMiB);
    EXPECT_EQ(most_equal_chunks(shape, rows, 2, 1024 * kMiB).size(), 2);
  }
}

} // namespace
} // namespace distill::losses::testing
