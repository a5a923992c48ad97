#include "losses/head/chunk_bytes.h"

#include <gtest/gtest.h>

#include "tests/losses/head/chunk_shapes.h"

namespace distill::losses::testing {
namespace {

TEST(ChunkBytes, LogitsLieBesideTheGradientsOfTheTokensBeforeThem) {
  const int64_t vocab = llama().vocab;
  const auto columns = [&](const std::vector<int64_t>& chunks) { return arena_bytes(llama(), chunks) / vocab; };
  EXPECT_EQ(columns({409}), 8 * 409 + 2 * 409);
  EXPECT_EQ(columns({409, 327}), 4090); // 8 * 327 + 2 * (409 + 327) is less
  EXPECT_EQ(columns({409, 327, 262, 209}), 8 * 262 + 2 * 998);
  EXPECT_EQ(columns({256, 256, 256, 256}), 8 * 256 + 2 * 1024);
  EXPECT_EQ(columns({300, 400}), 8 * 400 + 2 * 700);
}

TEST(ChunkBytes, GradientsOfTheLogitsDtypeTakeThePlaceOfTheStudentsLogits) {
  const std::vector<int64_t> chunks = equal_chunks(512, 2048);
  for (const int64_t bytes : {2, 4}) {
    HeadShape shape = llama();
    shape.logits_bytes = bytes;
    shape.gradient_bytes = bytes;
    EXPECT_TRUE(gradient_in_place(shape));
    EXPECT_EQ(arena_bytes(shape, chunks), shape.vocab * bytes * (2048 + 512)); // the teacher's logits beside them
    EXPECT_EQ(arena_bytes(shape, std::vector<int64_t>{1024, 512}), shape.vocab * bytes * 2048);
    shape.needs_grad = false;
    EXPECT_FALSE(gradient_in_place(shape));
    EXPECT_EQ(arena_bytes(shape, chunks), shape.vocab * bytes * 2 * 512);
  }
  EXPECT_FALSE(gradient_in_place(llama()));
  EXPECT_EQ(arena_bytes(llama(), chunks), llama().vocab * (8 * 512 + 2 * 2048));
}

TEST(ChunkBytes, TheRowKernelsThreadsCountButNoMoreOfThemThanRows) {
  HeadShape shape = llama(32000);
  const int64_t plain = scratch_bytes(shape, 1);
  shape.row_threads = 64;
  shape.row_thread_bytes = 256000;
  EXPECT_EQ(scratch_bytes(shape, 1), plain + 256000);
  EXPECT_EQ(scratch_bytes(shape, 1000), arena_bytes(shape, std::vector<int64_t>{1000}) + 64 * 256000);
}

TEST(ChunkBytes, EachSidesHiddenRowsCountInTheirOwnDtype) {
  HeadShape shape = llama();
  const std::vector<int64_t> chunks{3, 2};
  const int64_t plain = arena_bytes(shape, chunks);
  shape.gathers_rows = true;
  shape.teacher_hidden_bytes = 4;
  EXPECT_EQ(arena_bytes(shape, chunks) - plain, 3 * 4096 * 4 + 5 * 2 * 4096 * 2);
}

TEST(ChunkBytes, HugeShapesDoNotOverflow) {
  HeadShape shape = llama(int64_t{1} << 32);
  shape.tokens = int64_t{1} << 24;
  EXPECT_EQ(scratch_bytes(shape, equal_chunks(1024, 4096)), (int64_t{1} << 32) * (8 * 1024 + 2 * 4096));
}

} // namespace
} // namespace distill::losses::testing
