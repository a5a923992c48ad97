#include "tests/trainer/models/layer_kinds.h"
#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/models/units.h"

namespace distill::models {
namespace {

struct Shape {
  const char* name = nullptr;
  DecoderShape sizes;
  LayerKind kind;
  std::vector<int64_t> boundaries = {}; // of a batch of 2 x 24 tokens; empty: dense
  RopeSpec rope = {}; // dim 0: all of a head, by Llama's frequencies
};

Shape with_rope(
    RopeSpec rope, const char* name, const DecoderShape& sizes, const LayerKind& kind,
    std::vector<int64_t> boundaries) {
  Shape shape;
  shape.name = name;
  shape.sizes = sizes;
  shape.kind = kind;
  shape.boundaries = std::move(boundaries);
  shape.rope = std::move(rope);
  return shape;
}

ModelConfig make_config(const Shape& shape) {
  DecoderShape sizes = shape.sizes;
  sizes.vocab = 37;
  sizes.max_positions = 64;
  ModelConfig config = llama_like(sizes, shape.kind);
  if (shape.rope.dim > 0) {
    config.ropes = {shape.rope};
  }
  return config;
}

std::vector<at::Tensor*> fields(BlockParams& params) {
  std::vector<at::Tensor*> tensors{&params.attn_norm_H,      &params.attn_out_norm_H, &params.attention.q_norm,
                                   &params.attention.k_norm, &params.mlp_norm_H,      &params.mlp_out_norm_H,
                                   &params.output_scale,     &params.delta.a_log_A,   &params.delta.dt_bias_A,
                                   &params.delta.gate_norm_D};
  for (const auto& [name, projection] : params.projections()) {
    tensors.insert(tensors.end(), {&projection->weight_OI, &projection->bias_O});
  }
  std::erase_if(tensors, [](const at::Tensor* tensor) { return !tensor->defined(); });
  return tensors;
}

class BlockTest : public DeviceTest {
 protected:
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kSeqLen = 24;

  static std::vector<Shape> shapes() {
    const auto sizes = [](int64_t hidden, int64_t ffn, int64_t heads, int64_t kv_heads, int64_t head_dim) {
      return DecoderShape{.hidden = hidden, .ffn = ffn, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
    };
    return {
        {"mha", sizes(32, 48, 4, 4, 8), {}},
        {"grouped", sizes(40, 56, 6, 2, 10), {}},
        {"bias, packed", sizes(32, 40, 4, 1, 8), kind_of(true, false), {0, 5, 24, 25, 48}},
        {"q/k norm, wide heads", sizes(24, 64, 4, 2, 40), kind_of(false, true)},
        {"q/k norm, packed", sizes(24, 36, 2, 2, 80), kind_of(false, true), {0, 24, 30, 48}},
        {"norms after the sublayers", sizes(32, 48, 4, 2, 8), kind_of(false, true, with_norms_after())},
        {"norms before and after", sizes(32, 48, 4, 2, 8), with_all_norms({})},
        {"norm before attention only", sizes(32, 48, 4, 2, 8), attention_norm_only()},
        {"another scale of the scores", sizes(32, 48, 4, 2, 8), with_scale(0.2)},
        {"norms of 1 + weight, GeGLU", sizes(32, 48, 4, 2, 8), gemma_kind()},
        {"norms of all heads", sizes(24, 36, 2, 1, 16), olmo_kind(), {0, 24, 30, 48}},
        {"no rope", sizes(32, 48, 4, 2, 8), without_rope()},
        {"no rope, q/k norm", sizes(32, 48, 4, 2, 8), without_rope(kind_of(false, true))},
        with_rope(
            {.dim = 12}, "part of a head rotated", sizes(32, 48, 4, 2, 20), kind_of(false, false), {0, 5, 24, 25, 48}),
        with_rope({.dim = 12}, "part of a head rotated, q/k norm", sizes(32, 48, 4, 2, 20), kind_of(false, true), {}),
        with_rope(
            {.dim = 8, .query_scaling = QueryScaling{0.5, 3}}, "scaled queries", sizes(32, 48, 4, 2, 8),
            kind_of(false, false), {0, 5, 24, 25, 48}),
        {"window", sizes(32, 48, 4, 2, 8), with_window(5)},
        {"window, packed", sizes(32, 48, 4, 2, 8), with_window(6, kind_of(false, true)), {0, 6, 24, 40, 48}},
        {"capped scores, packed", sizes(32, 48, 4, 2, 8), with_softcap(0.8, with_window(20)), {0, 24, 30, 48}},
        {"heads of 512", sizes(32, 48, 4, 2, 512), gemma4_kind(), {0, 5, 24, 25, 48}},
        {"keys are values, scaled output", sizes(32, 48, 4, 2, 8), gemma4_kind()},
        {"norm of v, window", sizes(32, 48, 4, 2, 8), gemma4_sliding_kind()},
        with_rope(
            {.dim = 8, .turning_pairs = 1}, "few pairs turn", sizes(32, 48, 4, 2, 8), kind_of(false, true),
            {0, 5, 24, 25, 48}),
        {"experts", sizes(32, 24, 4, 2, 8), with_experts({.count = 6, .per_token = 2})},
        {"normalised experts, packed",
         sizes(32, 24, 4, 2, 8),
         with_experts({.count = 5, .per_token = 3, .normalise = true}, kind_of(false, true)),
         {0, 5, 24, 25, 48}},
        {"gated attention", sizes(32, 48, 4, 2, 8), gated_attention_kind()},
        with_rope(
            {.dim = 12}, "gated attention, part of a head rotated, packed", sizes(24, 36, 2, 1, 20),
            gated_attention_kind(), {0, 5, 24, 25, 48}),
        {"delta rule", sizes(32, 48, 4, 2, 8), delta_kind()},
        {"delta rule, packed", sizes(32, 48, 4, 2, 8), delta_kind(gated_attention_kind()), {0, 1, 6, 24, 25, 48}},
        {"delta rule between norms", sizes(32, 48, 4, 2, 8), with_all_norms(delta_kind())},
        {"shared expert",
         sizes(32, 24, 4, 2, 8),
         with_experts({.count = 4, .per_token = 2, .normalise = true, .shared_ffn = 20}, delta_kind()),
         {0, 5, 24, 25, 48}},
        {"shared expert between norms", sizes(32, 24, 4, 2, 8),
         with_all_norms(with_experts({.count = 4, .per_token = 1, .shared_ffn = 12}))},
        {"experts between norms", sizes(32, 24, 4, 2, 8), with_all_norms(with_experts({.count = 4, .per_token = 2}))},
    };
  }

  struct Case {
    ModelConfig config;
    UnitLayout layout;
    SequenceInfo seq;
    std::vector<RopeAngles> ropes;
    at::Tensor flat;
    at::Tensor x_NH;
    at::Tensor dy_NH;

    BlockContext context() const {
      return {config.layer(0), seq, ropes};
    }
  };

  static Case make_case(const Shape& shape, at::ScalarType dtype = at::kDouble, int64_t seq_len = kSeqLen) {
    Case c;
    c.config = make_config(shape);
    c.layout = unit_layouts(c.config)[1];
    c.seq = shape.boundaries.empty() ? dense_sequences(kBatch, seq_len, test_device())
                                     : packed_sequences(kBatch, seq_len, shape.boundaries, test_device());
    c.ropes = rope_angles(make_rope_tables(c.config.ropes, seq_len, test_device()), c.seq);
    c.flat = at::zeros({c.layout.numel}, options(dtype));
    BlockParams params = block_params(c.layout, c.flat);
    for (at::Tensor* param : fields(params)) {
      const double scale = param->dim() == 2 ? 1.0 / std::sqrt(static_cast<double>(param->size(1))) : 0.3;
      param->copy_(randn(param->sizes(), dtype).mul_(scale));
      if (param->dim() == 1) {
        param->add_(1.0);
      }
    }
    c.x_NH = randn({kBatch * seq_len, c.config.hidden_size}, dtype);
    c.dy_NH = randn({kBatch * seq_len, c.config.hidden_size}, dtype);
    return c;
  }

  struct Gradients {
    at::Tensor y_NH, dx_NH, flat;
  };

  static Gradients run(
      const Case& c, bool recompute = false, int64_t tile_tokens = 0, bool recomputes_attention = true) {
    Gradients result;
    const bool fp64 = c.flat.scalar_type() == at::kDouble;
    result.flat = at::zeros({c.layout.numel}, options(fp64 ? at::kDouble : at::kFloat));
    const BlockParams params = block_params(c.layout, c.flat);
    BlockParams grads = block_params(c.layout, result.flat);
    BlockContext context = c.context();
    context.tile_tokens = tile_tokens;
    BlockSaved saved;
    result.y_NH = block_forward(context, params, c.x_NH, recompute && recomputes_attention ? nullptr : &saved);
    if (recompute) {
      saved = recomputes_attention ? save_input_only(c.x_NH) : save_input_and_attention(std::move(saved));
    }
    const at::Tensor dy_NH = tile_tokens > 0 ? c.dy_NH.clone() : c.dy_NH; // in tiles it is overwritten
    result.dx_NH = block_backward(context, params, dy_NH, std::move(saved), grads);
    return result;
  }

  // Autograd through the reference, in `dtype`.
  static Gradients reference(const Case& c, at::ScalarType dtype) {
    const at::Tensor flat = leaf(c.flat.to(dtype));
    const at::Tensor x = leaf(c.x_NH.to(dtype));
    Gradients result;
    result.y_NH = reference_block(c.context(), block_params(c.layout, flat), x);
    const auto grads = reference_gradients(result.y_NH, c.dy_NH.to(dtype), {x, flat});
    result.y_NH = result.y_NH.detach();
    result.dx_NH = grads[0];
    result.flat = grads[1];
    return result;
  }
};

TEST_F(BlockTest, EveryGradientMatchesAutogradInFp64) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Case c = make_case(shape);
    const Gradients expected = reference(c, at::kDouble);
    const Gradients actual = run(c);
    EXPECT_LT(relative_error(actual.y_NH, expected.y_NH), 1e-12);
    EXPECT_LT(relative_error(actual.dx_NH, expected.dx_NH), 1e-11);
    for (const ParamLayout& param : c.layout.params) {
      const at::Tensor gradient = c.layout.view(actual.flat, param.name);
      if (param.trained) {
        EXPECT_LT(relative_error(gradient, c.layout.view(expected.flat, param.name)), 1e-11) << param.name;
      } else {
        EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << param.name;
      }
    }
  }
}

TEST_F(BlockTest, GradientsAddToWhatIsThere) {
  const Case c = make_case(shapes()[2]);
  const Gradients once = run(c);
  const BlockParams params = block_params(c.layout, c.flat);
  at::Tensor flat = at::zeros({c.layout.numel}, options());
  BlockParams grads = block_params(c.layout, flat);
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    BlockSaved saved;
    block_forward(c.context(), params, c.x_NH, &saved);
    block_backward(c.context(), params, c.dy_NH, std::move(saved), grads);
  }
  EXPECT_LT(relative_error(flat, once.flat * 3), 1e-12);
}

TEST_F(BlockTest, RecomputeGivesTheSameBits) {
  for (const Shape& shape : shapes()) {
    const Case c = make_case(shape, at::kFloat);
    const Gradients saved = run(c);
    for (const bool with_attention : {true, false}) {
      const Gradients again = run(c, /*recompute=*/true, /*tile_tokens=*/0, with_attention);
      EXPECT_TRUE(at::equal(saved.dx_NH, again.dx_NH)) << shape.name;
      EXPECT_TRUE(at::equal(saved.flat, again.flat)) << shape.name;
    }
  }
}

// At a size for which a library has several algorithms for a product, in the dtype for which it has most.
TEST_F(BlockTest, RecomputeGivesTheSameBitsAtTheSizeOfAModel) {
  const DecoderShape sizes{.hidden = 512, .ffn = 1408, .heads = 8, .kv_heads = 4, .head_dim = 64};
  const Case c = make_case(Shape{.name = "model", .sizes = sizes}, at::kBFloat16, 1024);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  for (const int64_t tile_tokens : {0, 512}) {
    const Gradients saved = run(c, /*recompute=*/false, tile_tokens), again = run(c, /*recompute=*/true, tile_tokens);
    EXPECT_TRUE(at::equal(saved.y_NH, again.y_NH)) << (saved.y_NH - again.y_NH).abs().max().item<double>();
    EXPECT_TRUE(at::equal(saved.dx_NH, again.dx_NH));
    EXPECT_TRUE(at::equal(saved.flat, again.flat));
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

// What attention's output holds is used: other values give another gradient.
TEST_F(BlockTest, SavedAttentionIsNotComputedAgain) {
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
TEST_F(BlockTest, TilesGiveTheSameGradients) {
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
TEST_F(BlockTest, TilesAreAsExactInLowPrecision) {
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
TEST_F(BlockTest, TheFirstTileDecidesWhetherAGradientIsNew) {
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

// The block's weights in float8, as a model that is trained has them.
BlockParams in_float8(const BlockParams& exact) {
  BlockParams params = exact;
  const at::Tensor& weight = exact.mlp.down.weight_OI;
  Float8CountsOf counts;
  for (at::Tensor& operand : counts) {
    operand = at::zeros({kFloat8Counts}, weight.options().dtype(at::kLong));
  }
  for (const auto& [name, projection] : params.projections()) {
    if (!projection->weight_OI.defined() || name == "ba" || name == "conv") {
      continue; // the router of a block without experts; what is never in float8 of a delta rule
    }
    const Float8Rows rows = float8_rows(projection->weight_OI, {.power_of_two = true});
    projection->weight_OI = rows.values_RC;
    projection->scale_O = rows.scale_R;
    projection->float8_counts = counts;
  }
  return params;
}

// Whose sizes are multiples of 16, as float8 needs them.
LayerKind wide_delta() {
  LayerKind kind = delta_kind();
  kind.delta->key_dim = kind.delta->value_dim = 16;
  return kind;
}

TEST_F(BlockTest, Float8GradientsAreNearThoseOfTheRoundedWeights) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const DecoderShape sizes{.hidden = 64, .ffn = 96, .heads = 4, .kv_heads = 2, .head_dim = 16};
  for (const Shape& shape :
       {Shape{"norms before", sizes, kind_of(true, false), {0, 5, 24, 25, 48}},
        Shape{"norms after", sizes, kind_of(false, true, with_norms_after())},
        Shape{"delta rule", sizes, wide_delta()}}) {
    SCOPED_TRACE(shape.name);
    Case c = make_case(shape, dtype);
    const BlockParams float8 = in_float8(block_params(c.layout, c.flat));
    // The reference has the rounded weights, so that what differs is the rounding of activations and gradients.
    Case rounded = c;
    rounded.flat = c.flat.clone();
    BlockParams views = block_params(c.layout, rounded.flat);
    const auto rounded_weights = float8.projections();
    const auto places = views.projections();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].second->weight_OI.defined() && rounded_weights[i].second->is_float8()) {
        places[i].second->weight_OI.copy_(
            float8_to_float({rounded_weights[i].second->weight_OI, rounded_weights[i].second->scale_O}));
      }
    }
    const Gradients expected = reference(rounded, at::kDouble);
    // A recurrence carries what rounding changed to later tokens, and the norms of its small heads enlarge it.
    const double enlarged = shape.kind.delta ? 2 : 1;

    for (const bool recompute : {false, true}) {
      at::Tensor flat = at::zeros({c.layout.numel}, options(at::kFloat));
      BlockParams grads = block_params(c.layout, flat);
      BlockSaved saved;
      const at::Tensor y = block_forward(c.context(), float8, c.x_NH, &saved);
      if (recompute) {
        saved = save_input_only(c.x_NH);
      }
      const at::Tensor dx = block_backward(c.context(), float8, c.dy_NH, std::move(saved), grads);
      const auto error = [](const at::Tensor& actual, const at::Tensor& exact) {
        return ((actual.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
      };
      EXPECT_LT(error(y, expected.y_NH), 0.06);
      EXPECT_GT(error(y, expected.y_NH), 1e-3); // activations were rounded
      EXPECT_LT(error(dx, expected.dx_NH), 0.1 * enlarged);
      for (const ParamLayout& param : c.layout.params) {
        EXPECT_LT(error(c.layout.view(flat, param.name), c.layout.view(expected.flat, param.name)), 0.15 * enlarged)
            << param.name;
      }
    }
    const at::Tensor& gradients = counts_of(float8.mlp.down.float8_counts, Float8Operand::kGradients);
    const int64_t tokens = c.x_NH.size(0);
    int64_t outputs = 0;
    for (const ParamLayout& param : c.layout.params) {
      outputs += param.may_be_float8 ? param.shape[0] : 0;
    }
    EXPECT_EQ(gradients[kFloat8Values].item<int64_t>(),
              2 * tokens / kFloat8SampledRows * outputs); // two passes
    EXPECT_GT(counts_of(float8.mlp.down.float8_counts, Float8Operand::kActivations)[kFloat8Values].item<int64_t>(), 0);
  }
}

// Rows are rounded one by one, so that tiles change no more than the order of sums does: a value here and there that
// falls on the other side of a rounding.
TEST_F(BlockTest, Float8TilesRoundTheSameRows) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const DecoderShape sizes{.hidden = 64, .ffn = 96, .heads = 4, .kv_heads = 2, .head_dim = 16};
  for (const Shape& shape : {Shape{"norms before", sizes, {}}, Shape{"norms after", sizes, with_norms_after()}}) {
    SCOPED_TRACE(shape.name);
    const Case c = make_case(shape, dtype);
    const BlockParams float8 = in_float8(block_params(c.layout, c.flat));
    Gradients whole, tiled;
    for (Gradients* result : {&whole, &tiled}) {
      result->flat = at::zeros({c.layout.numel}, options(at::kFloat));
      BlockParams grads = block_params(c.layout, result->flat);
      BlockContext context = c.context();
      context.tile_tokens = result == &tiled ? 16 : 0;
      result->y_NH = block_forward(context, float8, c.x_NH, nullptr);
      result->dx_NH = block_backward(context, float8, c.dy_NH.clone(), save_input_only(c.x_NH), grads);
    }
    EXPECT_LT(relative_error(tiled.y_NH, whole.y_NH), 2e-3);
    EXPECT_LT(relative_error(tiled.dx_NH, whole.dx_NH), 5e-3);
    EXPECT_LT(relative_error(tiled.flat, whole.flat), 5e-3);
  }
}

TEST_F(BlockTest, WithoutKeptOrGradientsTheRestIsTheSame) {
  const Case c = make_case(shapes()[3]);
  const Gradients full = run(c);
  const BlockParams params = block_params(c.layout, c.flat);
  EXPECT_TRUE(at::equal(block_forward(c.context(), params, c.x_NH, nullptr), full.y_NH));
  BlockParams no_gradients;
  const at::Tensor dx = block_backward(c.context(), params, c.dy_NH, save_input_only(c.x_NH), no_gradients);
  EXPECT_LT(relative_error(dx, full.dx_NH), 1e-12);
}

TEST_F(BlockTest, ForwardLeavesInputAndWeightsAlone) {
  const Case c = make_case(shapes()[4]);
  const at::Tensor flat = c.flat.clone();
  const at::Tensor x = c.x_NH.clone();
  const at::Tensor dy = c.dy_NH.clone();
  run(c);
  EXPECT_TRUE(at::equal(c.flat, flat));
  EXPECT_TRUE(at::equal(c.x_NH, x));
  EXPECT_TRUE(at::equal(c.dy_NH, dy));
}

TEST_F(BlockTest, PackedDocumentsEqualTheSameDocumentsOneByOne) {
  for (const Shape& shape : shapes()) {
    if (shape.boundaries.empty()) {
      continue;
    }
    const Case c = make_case(shape);
    const Gradients packed = run(c);
    at::Tensor summed = at::zeros_like(packed.flat);
    for (size_t s = 0; s + 1 < shape.boundaries.size(); ++s) {
      Case document = c;
      const int64_t begin = shape.boundaries[s];
      const int64_t length = shape.boundaries[s + 1] - begin;
      document.seq = dense_sequences(1, length, test_device());
      document.ropes = rope_angles(make_rope_tables(c.config.ropes, length, test_device()), document.seq);
      document.x_NH = c.x_NH.narrow(0, begin, length);
      document.dy_NH = c.dy_NH.narrow(0, begin, length);
      const Gradients alone = run(document);
      EXPECT_LT(relative_error(packed.y_NH.narrow(0, begin, length), alone.y_NH), 1e-12);
      EXPECT_LT(relative_error(packed.dx_NH.narrow(0, begin, length), alone.dx_NH), 1e-12);
      summed.add_(alone.flat);
    }
    EXPECT_LT(relative_error(packed.flat, summed), 1e-12);
  }
}

// The bar: no worse than twice the error of the plain computation in the same precision.
TEST_F(BlockTest, LowPrecisionIsAsCloseAsThePlainComputation) {
  for (const Shape& shape : shapes()) {
    if (shape.kind.mlp.experts) {
      continue; // rounding may change the choice of experts: moe_layer_test.cpp
    }
    SCOPED_TRACE(shape.name);
    const Case c = make_case(shape, at::kBFloat16);
    const Gradients exact = reference(c, at::kDouble);
    const Gradients plain = reference(c, at::kBFloat16);
    const Gradients actual = run(c);
    // The norm of a delta rule's small heads enlarges what rounding changed where a head's output is near zero. On CUDA
    // the operands of the rule's products are rounded, too (4.6 times the plain error on an H100).
    const double times = !shape.kind.delta ? 2 : test_device().is_cuda() ? 8 : 4;
    EXPECT_LT(relative_error(actual.y_NH, exact.y_NH), times * relative_error(plain.y_NH, exact.y_NH) + 4e-3);
    EXPECT_LT(relative_error(actual.dx_NH, exact.dx_NH), times * relative_error(plain.dx_NH, exact.dx_NH) + 4e-3);
    for (const ParamLayout& param : c.layout.params) {
      if (!param.trained) {
        continue;
      }
      const at::Tensor expected = c.layout.view(exact.flat, param.name);
      EXPECT_LT(
          relative_error(c.layout.view(actual.flat, param.name), expected),
          times * relative_error(c.layout.view(plain.flat, param.name), expected) + 4e-3)
          << param.name;
    }
  }
}

// In a simulation of the device, where such a block needs no memory. In tiles, gate and up (56 KiB) are not saved.
TEST_F(BlockTest, ALlama8BBlockSaves92KiBPerToken) {
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
TEST_F(BlockTest, TilesBoundWhatTheBackwardPassNeeds) {
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
TEST_F(BlockTest, EveryKindOfBlockIsSimulated) {
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

// The same kernels run, so that models whose window never matters keep their bits.
TEST_F(BlockTest, AWindowOfTheWholeSequenceChangesNoBit) {
  Case c = make_case(shapes()[0], at::kFloat);
  const Gradients plain = run(c);
  c.config.kinds[0].attention.window = kSeqLen;
  const Gradients windowed = run(c);
  EXPECT_TRUE(at::equal(windowed.y_NH, plain.y_NH));
  EXPECT_TRUE(at::equal(windowed.dx_NH, plain.dx_NH));
  EXPECT_TRUE(at::equal(windowed.flat, plain.flat));
}

// The whole model over flat units: forward hidden states, and the gradient of every unit through units' own functions.
TEST_F(BlockTest, AWholeModelMatchesAutograd) {
  for (const bool tied : {false, true}) {
    ModelConfig config = make_config(shapes()[1]);
    config.tie_word_embeddings = tied;
    config.embedding_scale = tied ? 5.5 : 1;
    config.final_norm_offset = tied ? 1 : 0;
    const std::vector<UnitLayout> layouts = unit_layouts(config);
    const SequenceInfo seq = dense_sequences(kBatch, kSeqLen, test_device());
    const auto ropes = rope_angles(make_rope_tables(config.ropes, kSeqLen, test_device()), seq);
    const BlockContext context{config.layer(0), seq, ropes};
    const at::Tensor tokens = at::randint(0, config.vocab_size, {kBatch * kSeqLen}, at::kLong).to(test_device());
    std::vector<at::Tensor> flats, leaves, grads;
    for (const UnitLayout& layout : layouts) {
      flats.push_back(randn({layout.numel}).mul_(0.3));
      leaves.push_back(leaf(flats.back()));
      grads.push_back(at::zeros({layout.numel}, options()));
    }
    const size_t first = embedding_unit(layouts);
    const size_t last = head_unit(layouts);

    at::Tensor expected = embedding_weight(layouts[first], leaves[first]).index({tokens}) * config.embedding_scale;
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (layouts[i].kind == UnitKind::kBlock) {
        expected = reference_block(context, block_params(layouts[i], leaves[i]), expected);
      }
    }
    expected = reference_rms_norm(
        expected, final_norm_weight(layouts[last], leaves[last]), config.final_norm_eps, config.final_norm_offset);
    const at::Tensor dhidden = randn(expected.sizes());
    const auto expected_grads = reference_gradients(expected, dhidden, leaves);

    std::vector<BlockSaved> saved(layouts.size());
    at::Tensor x = embedding_forward(tokens, embedding_weight(layouts[first], flats[first]), config.embedding_scale);
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (layouts[i].kind == UnitKind::kBlock) {
        x = block_forward(context, block_params(layouts[i], flats[i]), x, &saved[i]);
      }
    }
    FinalNormSaved norm_saved;
    const at::Tensor norm = final_norm_weight(layouts[last], flats[last]);
    EXPECT_LT(relative_error(final_norm_forward(config, norm, x, &norm_saved), expected), 1e-11);
    at::Tensor norm_grad = final_norm_weight(layouts[last], grads[last]);
    at::Tensor dx = final_norm_backward(config, norm, dhidden, norm_saved, norm_grad);
    for (size_t i = layouts.size(); i-- > 0;) {
      if (layouts[i].kind == UnitKind::kBlock) {
        BlockParams block_grads = block_params(layouts[i], grads[i]);
        dx = block_backward(context, block_params(layouts[i], flats[i]), dx, std::move(saved[i]), block_grads);
      }
    }
    at::Tensor table_grad = embedding_weight(layouts[first], grads[first]);
    embedding_backward(tokens, dx, table_grad, config.embedding_scale);
    for (size_t i = 0; i < layouts.size(); ++i) {
      EXPECT_LT(relative_error(grads[i], expected_grads[i]), 1e-10) << layouts[i].name << (tied ? ", tied" : "");
    }
  }
}

} // namespace
} // namespace distill::models
