// What a block saves and needs, in tiles and not, with the same gradients.
#include <limits>

#include "tests/trainer/models/block_cases.h"
#include "trainer/device/simulation.h"

namespace distill::models {
namespace {

using BlockMemoryTest = BlockCases;

// What attention's output holds is used: other values give another gradient.
TEST_F(BlockMemoryTest, SavedAttentionIsNotComputedAgain) {
  const Case c = make_case(shapes()[0]);
  BlockSaved saved;
  block_forward(c.context(), block_params(c.layout, c.flat), c.x_NH, &saved);
  const int64_t all = saved.bytes();
  saved = save_input_and_attention(std::move(saved));
  EXPECT_LT(saved.bytes(), all / 2);
  EXPECT_EQ(saved.tensors().size(), 3U);
  saved.attention.out_NQ.fill_(0);
  at::Tensor flat = at::zeros({c.layout.numel}, options());
  BlockParams grads = block_params(c.layout, flat);
  block_backward(c.context(), block_params(c.layout, c.flat), c.dy_NH, std::move(saved), grads);
  EXPECT_EQ(grads.attention.o.weight_OI.abs().max().item<double>(), 0); // dy^T out
}

// The last tile is smaller than the others, or as large. Sums over tokens are added in another order, by tiles; all
// else is computed for each token alone.
TEST_F(BlockMemoryTest, TilesGiveTheSameGradients) {
  for (const Shape& shape : shapes()) {
    const Case c = make_case(shape);
    const Gradients whole = run(c);
    for (const int64_t tile : {7, 16, 47, 48, 1000}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(absl::StrCat(shape.name, ", tiles of ", tile, recompute ? ", recomputed" : ""));
        const Gradients tiled = run(c, recompute, tile);
        EXPECT_LT(relative_error(tiled.y_NH, whole.y_NH), 1e-13);
        EXPECT_LT(relative_error(tiled.dx_NH, whole.dx_NH), 1e-13);
        for (const ParamLayout& param : c.layout.params) {
          EXPECT_LT(relative_error(c.layout.view(tiled.flat, param.name), c.layout.view(whole.flat, param.name)), 5e-13)
              << param.name;
        }
      }
    }
  }
}

// Their errors against fp64 are those of the computation without tiles, but for the order in which fp32 sums are added.
TEST_F(BlockMemoryTest, TilesAreAsExactInLowPrecision) {
  for (const Shape& shape : shapes()) {
    if (shape.kind.mlp.experts) {
      continue; // rounding may change the choice of experts
    }
    SCOPED_TRACE(shape.name);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Case c = make_case(shape, dtype);
      const Gradients exact = reference(c, at::kDouble);
      const Gradients whole = run(c), tiled = run(c, /*recompute=*/false, /*tile_tokens=*/16);
      // In fp32 on CUDA other sizes of a product are other algorithms; a delta rule's norm enlarges the difference.
      const double rounding = shape.kind.delta ? 1e-5 : 1e-6;
      const auto expect_as_exact = [=](const at::Tensor& tile, const at::Tensor& all, const at::Tensor& expected) {
        EXPECT_LT(relative_error(tile, expected), 1.2 * relative_error(all, expected) + rounding);
      };
      expect_as_exact(tiled.y_NH, whole.y_NH, exact.y_NH);
      expect_as_exact(tiled.dx_NH, whole.dx_NH, exact.dx_NH);
      for (const ParamLayout& param : c.layout.params) {
        const auto view = [&](const Gradients& gradients) { return c.layout.view(gradients.flat, param.name); };
        expect_as_exact(view(tiled), view(whole), view(exact));
      }
    }
  }
}

// What a weight's gradient holds before the first tile is not read where it is new, and is added to where it is not.
TEST_F(BlockMemoryTest, TheFirstTileDecidesWhetherAGradientIsNew) {
  const Case c = make_case(shapes()[0]);
  const Gradients once = run(c);
  const BlockParams params = block_params(c.layout, c.flat);
  BlockContext context = c.context();
  context.tile_tokens = 16;
  at::Tensor flat = at::zeros({c.layout.numel}, options());
  for (const bool is_new : {true, false}) {
    BlockParams grads = block_params(c.layout, flat);
    for (const auto& [name, projection] : grads.projections()) {
      projection->is_new = is_new;
      if (is_new && projection->weight_OI.defined()) {
        projection->weight_OI.fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
    block_backward(context, params, c.dy_NH.clone(), save_input_only(c.x_NH), grads);
  }
  EXPECT_LT(relative_error(flat, once.flat * 2), 1e-12);
}

// In a simulation of the device, where such a block needs no memory. In tiles, gate and up (56 KiB) are not saved.
TEST_F(BlockMemoryTest, ALlama8BBlockSaves92KiBPerToken) {
  const ModelConfig config =
      llama_like({.hidden = 4096, .ffn = 14336, .layers = 1, .heads = 32, .kv_heads = 8, .head_dim = 128});
  constexpr int64_t kTokens = 4096;
  const device::Simulation simulation(c10::DeviceType::CUDA);
  const auto meta = at::TensorOptions().device(at::kMeta);
  const UnitLayout layout = unit_layouts(config)[1];
  const at::Tensor flat = at::empty({layout.numel}, meta.dtype(at::kBFloat16));
  const at::Tensor angles = at::empty({kTokens, 64}, meta.dtype(at::kFloat));
  const at::Tensor x_NH = at::empty({kTokens, config.hidden_size}, meta.dtype(at::kBFloat16));
  SequenceInfo seq;
  seq.batch = 1;
  seq.seq_len = seq.max_seqlen = kTokens;
  seq.segments_host = {0, kTokens};
  const std::vector<RopeAngles> ropes{{angles, angles}};
  for (const auto& [tile, kib] : {std::pair<int64_t, double>{0, 92.0}, {kTokens, 92.0}, {kTokens / 4, 36.0}}) {
    BlockSaved saved;
    const BlockContext context{config.layer(0), seq, ropes, /*balance=*/nullptr, tile};
    block_forward(context, block_params(layout, flat), x_NH, &saved);
    EXPECT_NEAR(static_cast<double>(saved.bytes()) / kTokens / 1024.0, kib, 0.5);
  }
}

// A block of the shapes of Llama 8B needs 84 KiB per token beside what it has saved: attention's backward pass.
TEST_F(BlockMemoryTest, TilesBoundWhatTheBackwardPassNeeds) {
  const ModelConfig config =
      llama_like({.hidden = 4096, .ffn = 14336, .layers = 1, .heads = 32, .kv_heads = 8, .head_dim = 128});
  constexpr int64_t kTokens = 65536;
  const auto peak = [&](int64_t tile) { // KiB per token, weights and gradients left out
    device::Simulation simulation(c10::DeviceType::CUDA);
    const auto meta = at::TensorOptions().device(at::kMeta);
    const UnitLayout layout = unit_layouts(config)[1];
    const at::Tensor flat = at::empty({layout.numel}, meta.dtype(at::kBFloat16));
    const at::Tensor gradient = at::empty({layout.numel}, meta.dtype(at::kFloat));
    const at::Tensor angles = at::empty({kTokens, 64}, meta.dtype(at::kFloat));
    SequenceInfo seq;
    seq.batch = 1;
    seq.seq_len = seq.max_seqlen = kTokens;
    seq.segments_host = {0, kTokens};
    const std::vector<RopeAngles> ropes{{angles, angles}};
    const int64_t before = simulation.allocated();
    const at::Tensor x_NH = at::empty({kTokens, config.hidden_size}, meta.dtype(at::kBFloat16));
    const at::Tensor dy_NH = at::empty_like(x_NH);
    BlockParams grads = block_params(layout, gradient);
    block_backward(
        {config.layer(0), seq, ropes, /*balance=*/nullptr, tile}, block_params(layout, flat), dy_NH,
        save_input_only(x_NH), grads);
    return static_cast<double>(simulation.use().peak() - before) / kTokens / 1024.0;
  };
  const double whole = peak(0), quarters = peak(kTokens / 4);
  EXPECT_NEAR(whole, 128, 0.5);
  EXPECT_NEAR(quarters, 84, 0.5);
  EXPECT_NEAR(peak(kTokens / 16), quarters, 0.5); // smaller tiles need no less
}

// A plan runs both passes on meta tensors, for which not every op of ATen has a kernel.
TEST_F(BlockMemoryTest, EveryKindOfBlockIsSimulated) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const device::Simulation simulation(test_device().type());
    const ModelConfig config = make_config(shape);
    const UnitLayout layout = unit_layouts(config)[1];
    const auto meta = [](at::IntArrayRef sizes, at::ScalarType dtype) {
      return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(dtype));
    };
    SequenceInfo seq = shape.boundaries.empty() ? dense_sequences(kBatch, kSeqLen, at::kCPU)
                                                : packed_sequences(kBatch, kSeqLen, shape.boundaries, at::kCPU);
    seq.positions_N = meta({kBatch * kSeqLen}, at::kLong);
    seq.cu_seqlens = meta(seq.cu_seqlens.sizes(), at::kInt);
    const auto ropes = rope_angles(make_rope_tables(config.ropes, kSeqLen, at::kMeta), seq);
    const BlockParams params = block_params(layout, meta({layout.numel}, at::kBFloat16));
    BlockParams grads = block_params(layout, meta({layout.numel}, at::kFloat));
    const at::Tensor x_NH = meta({kBatch * kSeqLen, config.hidden_size}, at::kBFloat16);
    for (const int64_t tile : {0, 20}) {
      const BlockContext context{config.layer(0), seq, ropes, /*balance=*/nullptr, tile};
      BlockSaved saved;
      EXPECT_EQ(block_forward(context, params, x_NH, &saved).sizes(), x_NH.sizes());
      EXPECT_EQ(block_backward(context, params, x_NH, std::move(saved), grads).sizes(), x_NH.sizes());
    }
  }
}

} // namespace
} // namespace distill::models
