#include "tests/trainer/models/block_cases.h"
#include "trainer/models/ops/embedding.h"

namespace distill::models {
namespace {

using BlockTest = BlockCases;

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

// The block's weights in float8, as a model that is trained has them.
BlockParams in_float8(const BlockParams& exact, bool weight_gradients = false) {
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
    projection->float8_weight_gradient = weight_gradients;
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
    const BlockParams all_float8 = in_float8(block_params(c.layout, c.flat), /*weight_gradients=*/true);
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

    at::Tensor dx_of_float8;
    for (const auto& [params, recompute, tile] :
         {std::tuple(&float8, false, int64_t{0}),
          {&float8, true, 0},
          {&all_float8, false, 0},
          {&all_float8, true, 0},
          {&all_float8, false, 16}}) {
      const bool weight_gradients = params == &all_float8;
      SCOPED_TRACE(absl::StrCat("weight gradients ", weight_gradients, ", recompute ", recompute, ", tile ", tile));
      BlockContext context = c.context();
      context.tile_tokens = tile;
      at::Tensor flat = at::zeros({c.layout.numel}, options(at::kFloat));
      BlockParams grads = block_params(c.layout, flat);
      BlockSaved saved;
      const at::Tensor y = block_forward(context, *params, c.x_NH, &saved);
      if (recompute) {
        saved = save_input_only(c.x_NH);
      }
      const at::Tensor dx = block_backward(context, *params, c.dy_NH.clone(), std::move(saved), grads);
      // What the weights' gradients are made of does not change those of activations.
      dx_of_float8 = dx_of_float8.defined() ? dx_of_float8 : dx;
      if (tile == 0) {
        EXPECT_TRUE(at::equal(dx, dx_of_float8));
      }
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
    const auto values_of = [](const BlockParams& params, Float8Operand operand) {
      return counts_of(params.mlp.down.float8_counts, operand)[kFloat8Values].item<int64_t>();
    };
    const int64_t tokens = c.x_NH.size(0);
    int64_t outputs = 0, inputs = 0;
    for (const ParamLayout& param : c.layout.params) {
      outputs += param.may_be_float8 ? param.shape[0] : 0;
      inputs += param.may_be_float8 ? param.shape[1] : 0;
    }
    const int64_t sampled = tokens / kFloat8SampledRows;
    EXPECT_EQ(values_of(float8, Float8Operand::kGradients), 2 * sampled * outputs); // two passes
    EXPECT_EQ(values_of(float8, Float8Operand::kWeightGradients), 0);
    EXPECT_EQ(values_of(all_float8, Float8Operand::kGradients), 3 * sampled * outputs); // for two products, once
    EXPECT_EQ(values_of(all_float8, Float8Operand::kWeightGradients), 3 * sampled * inputs);
    EXPECT_GT(values_of(float8, Float8Operand::kActivations), 0);
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
