#pragma once

#include "tests/trainer/models/layer_kinds.h"
#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/units.h"

// Blocks of every kind with random weights and inputs, their gradients, and those of autograd through the reference.
namespace distill::models {

struct Shape {
  const char* name = nullptr;
  DecoderShape sizes;
  LayerKind kind;
  std::vector<int64_t> boundaries = {}; // of a batch of 2 x 24 tokens; empty: dense
  RopeSpec rope = {}; // dim 0: all of a head, by Llama's frequencies
};

inline Shape with_rope(
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

inline ModelConfig make_config(const Shape& shape) {
  DecoderShape sizes = shape.sizes;
  sizes.vocab = 37;
  sizes.max_positions = 64;
  ModelConfig config = llama_like(sizes, shape.kind);
  if (shape.rope.dim > 0) {
    config.ropes = {shape.rope};
  }
  return config;
}

inline std::vector<at::Tensor*> fields(BlockParams& params) {
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

class BlockCases : public DeviceTest {
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

} // namespace distill::models
