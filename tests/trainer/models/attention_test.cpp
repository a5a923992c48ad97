#include <ATen/Context.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <vector>

#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/attention.h"
#include "trainer/models/ops/attention_math.h"

namespace distill::models {
namespace {

struct AttentionShape {
  int64_t heads, kv_heads, head_dim, batch, seq_len;
  std::vector<int64_t> boundaries; // empty: dense
  std::optional<int64_t> window = {};
  double softcap = 0;
};

std::ostream& operator<<(std::ostream& out, const AttentionShape& shape) {
  return out << shape.heads << " heads of " << shape.head_dim << ", " << shape.seq_len << " tokens, window "
             << shape.window.value_or(0) << ", softcap " << shape.softcap;
}

class AttentionTest : public DeviceTest {
 protected:
  struct Errors {
    double out = 0, dq = 0, dk = 0, dv = 0;
    double worst() const {
      return std::max({out, dq, dk, dv});
    }
  };

  static SequenceInfo sequences(const AttentionShape& shape) {
    return shape.boundaries.empty() ? dense_sequences(shape.batch, shape.seq_len, test_device())
                                    : packed_sequences(shape.batch, shape.seq_len, shape.boundaries, test_device());
  }

  // Errors against autograd in fp64 from the same (rounded) inputs.
  static Errors errors(const AttentionShape& shape, at::ScalarType dtype, bool math) {
    const int64_t tokens = shape.batch * shape.seq_len;
    const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const at::Tensor qkv = randn({tokens, width}, dtype).mul_(1.5);
    const at::Tensor dout = randn({tokens, shape.heads * shape.head_dim}, dtype);
    const SequenceInfo seq = sequences(shape);
    const AttentionOptions options{1.0 / std::sqrt(static_cast<double>(shape.head_dim)), shape.window, shape.softcap};
    const auto views = [&](const at::Tensor& fused) {
      const auto parts = fused.unflatten(1, {shape.heads + 2 * shape.kv_heads, shape.head_dim})
                             .split_with_sizes({shape.heads, shape.kv_heads, shape.kv_heads}, 1);
      return std::vector<at::Tensor>(parts.begin(), parts.end());
    };
    const auto inputs = views(qkv);
    const at::Tensor q = leaf(inputs[0].to(at::kDouble));
    const at::Tensor k = leaf(inputs[1].to(at::kDouble));
    const at::Tensor v = leaf(inputs[2].to(at::kDouble));
    const at::Tensor expected_out = reference_attention(q, k, v, seq.segments_host, options);
    const auto expected = reference_gradients(expected_out, dout.to(at::kDouble), {q, k, v});

    at::Tensor dqkv = at::full_like(qkv, std::numeric_limits<double>::quiet_NaN());
    auto grads = views(dqkv);
    AttentionResult result;
    if (math) {
      result = attention_math_forward(inputs[0], inputs[1], inputs[2], seq, options);
      attention_math_backward(
          dout, inputs[0], inputs[1], inputs[2], result, seq, options, grads[0], grads[1], grads[2]);
    } else {
      result = attention_forward(inputs[0], inputs[1], inputs[2], seq, options);
      attention_backward(dout, inputs[0], inputs[1], inputs[2], result, seq, options, grads[0], grads[1], grads[2]);
    }
    constexpr double kUnit = 1.0; // a lone token's score has no gradient at all
    return {
        relative_error(result.out_NQ, expected_out, kUnit), relative_error(grads[0], expected[0], kUnit),
        relative_error(grads[1], expected[1], kUnit), relative_error(grads[2], expected[2], kUnit)};
  }

  static std::vector<AttentionShape> shapes() {
    return {
        {4, 4, 16, 2, 33, {}},
        {9, 3, 40, 1, 50, {}},
        {4, 1, 80, 2, 7, {}},
        {2, 2, 6, 3, 1, {}},
        {8, 2, 64, 2, 192, {}},
        {6, 2, 40, 1, 40, {0, 1, 18, 18, 40}},
        {4, 2, 64, 2, 130, {0, 100, 130, 131, 260}},
        {2, 1, 128, 1, 600, {0, 590, 600}},
        {4, 2, 16, 2, 33, {}, 1},
        {6, 2, 40, 2, 150, {}, 7},
        {2, 1, 16, 1, 1100, {}, 520}, // queries and keys of several blocks
        {4, 2, 256, 2, 130, {0, 100, 130, 131, 260}, 100}, // segments longer than, as long as and shorter than it
        {2, 2, 64, 1, 600, {0, 590, 600}, 64},
        {4, 2, 512, 2, 130, {0, 100, 130, 131, 260}}, // wider than any fused kernel takes on CUDA
        {8, 2, 320, 1, 40, {}},
        {4, 2, 512, 1, 200, {}, 50},
        {4, 2, 64, 2, 130, {0, 100, 130, 131, 260}, {}, 1.5},
        {6, 2, 40, 2, 150, {}, 7, 3.0},
        {2, 1, 16, 1, 1100, {}, {}, 0.7},
    };
  }
};

TEST_F(AttentionTest, ExactInFp64) {
  for (const AttentionShape& shape : shapes()) {
    const Errors error = errors(shape, at::kDouble, /*math=*/false);
    EXPECT_LT(error.worst(), 1e-11) << shape;
  }
}

TEST_F(AttentionTest, MathBackendIsExactInFp64) {
  for (const AttentionShape& shape : shapes()) {
    const Errors error = errors(shape, at::kDouble, /*math=*/true);
    EXPECT_LT(error.worst(), 1e-11) << shape;
  }
}

// The scores that exist at a time are bounded, whatever the length; a document's blocks do not depend on its
// neighbours.
TEST_F(AttentionTest, TheQueriesOfABlockBecomeFewerAsDocumentsBecomeLonger) {
  EXPECT_EQ(attention_math_queries(/*heads=*/32, /*keys=*/100), 512);
  EXPECT_EQ(attention_math_queries(32, 4096), 512);
  EXPECT_EQ(attention_math_queries(32, 4097), 256);
  EXPECT_EQ(attention_math_queries(32, 65536), 32);
  EXPECT_EQ(attention_math_queries(32, 1 << 24), 16);
}

// In a simulation of the device: what there is beside inputs and results does not grow with the square of the length.
TEST_F(AttentionTest, MatrixProductsHoldABoundedNumberOfScores) {
  for (const int64_t length : {8192, 32768}) {
    const device::Simulation simulation(c10::DeviceType::CUDA);
    const auto meta = [&](int64_t heads) {
      return at::empty({length, heads, 512}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
    };
    SequenceInfo seq;
    seq.batch = 1;
    seq.seq_len = seq.max_seqlen = length;
    seq.segments_host = {0, length};
    const at::Tensor q = meta(32), k = meta(4), v = meta(4), dout = meta(32);
    at::Tensor dq = meta(32), dk = meta(4), dv = meta(4);
    const AttentionResult result = attention_forward(q, k, v, seq, {.scale = 1});
    attention_backward(dout.flatten(1), q, k, v, result, seq, {.scale = 1}, dq, dk, dv);
    const double sums = 2.0 * 4 * static_cast<double>(k.numel()); // of dk and dv, fp32
    const double scratch = static_cast<double>(simulation.reserved_peak() - simulation.allocated()) - sums;
    EXPECT_GT(scratch, 12.0 * (1 << 26)) << length; // scores and gradients of probabilities, in fp32 and in bf16
    EXPECT_LT(scratch, 1.5 * 12.0 * (1 << 26)) << length; // [heads, length, length] in bf16: 4 and 64 GiB
  }
}

// With deterministic algorithms, FlashAttention-2 has a sum of dq for each thread block on the same rows. Measured on
// an H200 with these shapes: 2 789 234 bytes of scratch, and the allocator's rounding.
TEST_F(AttentionTest, ScratchOfFlashAttentionGrowsWithDeterministicAlgorithms) {
  const auto scratch = [](bool deterministic) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
    const device::Simulation simulation(c10::DeviceType::CUDA);
    const auto meta = [](int64_t heads) {
      return at::empty({64, heads, 16}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
    };
    SequenceInfo seq = packed_sequences(1, 64, {0, 40, 64}, at::kCPU);
    const at::Tensor q = meta(4), k = meta(4), v = meta(4), dout = meta(4);
    at::Tensor dq = meta(4), dk = meta(4), dv = meta(4);
    const AttentionResult result = attention_forward(q, k, v, seq, {.scale = 1});
    const int64_t before = simulation.allocated();
    attention_backward(dout.flatten(1), q, k, v, result, seq, {.scale = 1}, dq, dk, dv);
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    return simulation.use().peak() - before;
  };
  EXPECT_NEAR(static_cast<double>(scratch(true)), 2789234, 40000);
  EXPECT_NEAR(static_cast<double>(scratch(false)), 320 * 4 * 33 * 4, 40000);
}

TEST_F(AttentionTest, PackedDocumentsHaveTheBitsThatTheyHaveAloneThroughMatrixProducts) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const std::vector<int64_t> boundaries{0, 70, 600, 601, 1200};
  const AttentionOptions options{.scale = 0.05, .window = 550, .softcap = 2.0};
  const at::Tensor q = randn({1200, 4, 24}, dtype), k = randn({1200, 2, 24}, dtype), v = randn({1200, 2, 24}, dtype);
  const at::Tensor dout = randn({1200, 4 * 24}, dtype);
  const auto run = [&](int64_t begin, int64_t length, const SequenceInfo& seq) {
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, length); };
    std::vector<at::Tensor> results{at::empty_like(rows(q)), at::empty_like(rows(k)), at::empty_like(rows(v))};
    const AttentionResult result = attention_math_forward(rows(q), rows(k), rows(v), seq, options);
    attention_math_backward(
        rows(dout), rows(q), rows(k), rows(v), result, seq, options, results[0], results[1], results[2]);
    results.push_back(result.out_NQ);
    return results;
  };
  const auto packed = run(0, 1200, packed_sequences(1, 1200, boundaries, test_device()));
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    const int64_t begin = boundaries[s], length = boundaries[s + 1] - begin;
    const auto alone = run(begin, length, dense_sequences(1, length, test_device()));
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(at::equal(packed[i].narrow(0, begin, length), alone[i])) << "document " << s << ", result " << i;
    }
  }
}

TEST_F(AttentionTest, CloseInFp32) {
  for (const AttentionShape& shape : shapes()) {
    EXPECT_LT(errors(shape, at::kFloat, /*math=*/false).worst(), 1e-5) << shape;
  }
}

// bf16 rounds inputs of the products to 8 bits: about 2^-8 of the largest value.
TEST_F(AttentionTest, CloseInLowPrecision) {
  for (const AttentionShape& shape : shapes()) {
    EXPECT_LT(errors(shape, at::kBFloat16, /*math=*/false).worst(), 2e-2) << shape;
    EXPECT_LT(errors(shape, at::kHalf, /*math=*/false).worst(), 3e-3) << shape;
  }
}

TEST_F(AttentionTest, InputsThatDoNotFitAreRefused) {
  const SequenceInfo seq = dense_sequences(1, 4, test_device());
  EXPECT_THROW(attention_forward(randn({4, 3, 8}), randn({4, 2, 8}), randn({4, 2, 8}), seq, {0.25}), c10::Error);
  EXPECT_THROW(attention_forward(randn({5, 2, 8}), randn({5, 2, 8}), randn({5, 2, 8}), seq, {0.25}), c10::Error);
  EXPECT_THROW(attention_forward(randn({4, 2, 8}), randn({4, 2, 6}), randn({4, 2, 6}), seq, {0.25}), c10::Error);
}

using SequenceTest = DeviceTest;

TEST_F(SequenceTest, PositionsRestartWithEverySegment) {
  const SequenceInfo seq = packed_sequences(2, 4, std::vector<int64_t>{0, 1, 4, 8}, test_device());
  EXPECT_TRUE(at::equal(seq.positions_N.cpu(), at::tensor({0, 0, 1, 2, 0, 1, 2, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(seq.cu_seqlens.cpu(), at::tensor({0, 1, 4, 8}, at::kInt)));
  EXPECT_EQ(seq.max_seqlen, 4);
  EXPECT_TRUE(seq.packed);
}

TEST_F(SequenceTest, BoundariesThatCrossARowAreRefused) {
  EXPECT_THROW(packed_sequences(2, 4, std::vector<int64_t>{0, 3, 6, 8}, test_device()), c10::Error);
  EXPECT_THROW(packed_sequences(2, 4, std::vector<int64_t>{0, 8}, test_device()), c10::Error);
  EXPECT_THROW(packed_sequences(2, 4, std::vector<int64_t>{0, 4}, test_device()), c10::Error);
  EXPECT_THROW(packed_sequences(2, 4, std::vector<int64_t>{0, 3, 2, 4, 8}, test_device()), c10::Error);
  EXPECT_NO_THROW(packed_sequences(2, 4, std::vector<int64_t>{0, 4, 4, 8}, test_device()));
}

} // namespace
} // namespace distill::models
