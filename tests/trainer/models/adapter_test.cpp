#include "trainer/models/adapter.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <array>

#include "tests/trainer/models/layer_kinds.h"
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/adapter_weights.h"
#include "trainer/models/block.h"
#include "trainer/models/ops/float8.h"

namespace distill::models {
namespace {

constexpr int64_t kBatch = 2, kSeqLen = 24;

// Adapters of other ranks and scales on the products' modules, one of which has none, and on experts.
AdapterSpec some_adapters(const ModelConfig& config, int64_t block) {
  AdapterSpec adapter;
  int64_t rank = 2;
  const auto add = [&](const ParamLayout& param, const std::string& name, int64_t first_row, int64_t rows,
                       const std::string& wrapper) {
    adapter.modules.push_back({block, param.name, name, first_row, rows, rank, 0.5 + 0.25 * rank, wrapper});
    ++rank;
  };
  for (const ParamLayout& param : block_layout(config, block).params) {
    if (param.groups > 1) {
      const std::string experts = "model.layers.0.mlp.experts";
      add(param, experts + "." + param.name + "_proj", 0, param.group_rows(),
          param.name == "gate_up" ? experts + ".base_layer" : experts);
      continue;
    }
    for (const ParamPart& part : param.parts) {
      if (param.shape.size() == 2 && !absl::StrContains(part.hf_name, "k_proj")) {
        const std::string name = part.hf_name.substr(0, part.hf_name.size() - std::string(".weight").size());
        add(param, name, part.first_row, part.rows, "");
      }
    }
  }
  return adapter;
}

struct Shape {
  const char* name = nullptr;
  LayerKind kind;
  bool trains_norms = false;
};

class AdapterTest : public DeviceTest {
 protected:
  static std::vector<Shape> shapes() {
    LayerKind fused;
    fused.fused_tensors = true;
    return {
        {"llama", {}},
        {"bias, trained norms", kind_of(true, true), true},
        {"norms after", with_norms_after()},
        {"norms before and after, geglu", gemma_kind(), true},
        {"keys are values", gemma4_kind()},
        {"fused tensors", fused},
        {"experts", with_experts({.count = 4, .per_token = 2, .normalise = true}), true},
        {"delta rule, a shared expert", with_experts({.count = 3, .per_token = 1, .shared_ffn = 20}, delta_kind())}};
  }

  struct Case {
    ModelConfig config;
    UnitLayout layout, trained_layout;
    SequenceInfo seq;
    std::vector<RopeAngles> ropes;
    at::Tensor frozen, trained, x_NH, dy_NH;

    BlockContext context(int64_t tile_tokens = 0) const {
      BlockContext context{config.layer(0), seq, ropes};
      context.tile_tokens = tile_tokens;
      return context;
    }
    BlockParams params() const {
      BlockParams params = block_params(layout, frozen);
      add_trained(params, block_params(trained_layout, trained));
      return params;
    }
  };

  static Case make_case(const Shape& shape, at::ScalarType dtype = at::kDouble) {
    Case c;
    c.config = llama_like(
        {.vocab = 37,
         .hidden = 32,
         .ffn = 48,
         .layers = 1,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 8,
         .max_positions = 64},
        shape.kind);
    c.config.adapter = some_adapters(c.config, 0);
    c.layout = unit_layouts(c.config)[1];
    if (shape.trains_norms) {
      for (const ParamLayout& param : c.layout.params) {
        if (!param.is_matrix && param.trained && absl::EndsWith(param.name, "norm")) {
          c.config.adapter->whole.push_back(param.parts.front().hf_name);
        }
      }
    }
    c.trained_layout = trained_layouts(c.config)[1];
    c.seq = packed_sequences(kBatch, kSeqLen, {0, 5, 24, 30, 48}, test_device());
    c.ropes = rope_angles(make_rope_tables(c.config.ropes, kSeqLen, test_device()), c.seq);
    const auto fill = [&](const UnitLayout& layout) {
      at::Tensor flat = at::zeros({layout.numel}, options(dtype));
      for (const ParamLayout& param : layout.params) {
        at::Tensor view = layout.view(flat, param.name);
        const double scale = param.is_matrix ? 1 / std::sqrt(static_cast<double>(param.shape[1])) : 0.3;
        view.copy_(randn(view.sizes(), dtype).mul_(scale).add_(param.is_matrix ? 0 : 1));
      }
      return flat;
    };
    c.frozen = fill(c.layout);
    c.trained = fill(c.trained_layout);
    c.x_NH = randn({kBatch * kSeqLen, c.config.hidden_size}, dtype);
    c.dy_NH = randn({kBatch * kSeqLen, c.config.hidden_size}, dtype);
    return c;
  }

  struct Result {
    at::Tensor y_NH, dx_NH, gradient;
  };

  static Result run(const Case& c, const Dropout& dropout = {}, bool recompute = false, int64_t tile_tokens = 0) {
    const bool fp64 = c.frozen.scalar_type() == at::kDouble;
    Result result;
    result.gradient = at::zeros({c.trained_layout.numel}, options(fp64 ? at::kDouble : at::kFloat));
    BlockParams params = c.params();
    params.set_dropout(dropout);
    BlockParams grads = block_params(c.trained_layout, result.gradient);
    BlockSaved saved;
    const BlockContext context = c.context(tile_tokens);
    result.y_NH = block_forward(context, params, c.x_NH, recompute ? nullptr : &saved);
    saved = recompute ? save_input_only(c.x_NH) : std::move(saved);
    result.dx_NH = block_backward(context, params, c.dy_NH.clone(), std::move(saved), grads);
    return result;
  }

  // A block whose weights have the adapters in them, differentiated by autograd.
  static Result reference(const Case& c) {
    const at::Tensor trained = leaf(c.trained), x = leaf(c.x_NH);
    BlockParams params = block_params(c.layout, c.frozen);
    BlockParams own = block_params(c.trained_layout, trained);
    const auto adapters = own.projections();
    size_t index = 0;
    for (const auto& [name, projection] : params.projections()) {
      const Adapter& adapter = adapters[index++].second->adapter;
      if (!adapter.exists()) {
        continue;
      }
      at::Tensor weight = projection->weight_OI.clone();
      if (const int64_t groups = c.layout.find(name)->groups; groups > 1) {
        const Adapter::Module& module = adapter.modules.front();
        const auto of_groups = [groups](const at::Tensor& rows) { return rows.view({groups, -1, rows.size(1)}); };
        const at::Tensor update = at::bmm(of_groups(module.b_OR), of_groups(adapter.a_RI)) * module.scale;
        projection->weight_OI = weight + update.view_as(weight);
        continue;
      }
      int64_t first = 0;
      for (const Adapter::Module& module : adapter.modules) {
        const at::Tensor a = adapter.a_RI.narrow(0, first, module.b_OR.size(1));
        const int64_t rows = module.b_OR.size(0), behind = weight.size(0) - module.first_row - rows;
        const at::Tensor update = at::matmul(module.b_OR, a) * module.scale;
        weight = weight +
            at::cat(
                     {at::zeros({module.first_row, weight.size(1)}, update.options()), update,
                      at::zeros({behind, weight.size(1)}, update.options())});
        first += module.b_OR.size(1);
      }
      EXPECT_EQ(first, adapter.a_RI.size(0));
      projection->weight_OI = weight;
    }
    add_trained(params, own);
    for (const auto& [name, projection] : params.projections()) {
      projection->adapter = {};
    }
    Result result;
    result.y_NH = reference_block(c.context(), params, x);
    const auto gradients = reference_gradients(result.y_NH, c.dy_NH, {x, trained});
    result.y_NH = result.y_NH.detach();
    result.dx_NH = gradients[0];
    result.gradient = gradients[1];
    return result;
  }
};

TEST_F(AdapterTest, LayoutsHaveWhatIsTrainedAlone) {
  Case c = make_case(shapes()[1]);
  const std::vector<UnitLayout> units = trained_layouts(c.config);
  ASSERT_EQ(units.size(), unit_layouts(c.config).size());
  EXPECT_EQ(units.front().numel, 0);
  EXPECT_TRUE(units.front().params.empty());
  const ParamLayout* a = units[1].find("qkv.lora_A");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2 + 3, 32})); // q and v
  EXPECT_EQ(a->parts[1].hf_name, "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight");
  EXPECT_EQ(a->parts[1].first_row, 2);
  const ParamLayout* b = units[1].find("qkv.lora_B.1");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{16, 3}));
  EXPECT_EQ(b->adapter->first_row, 32 + 16);
  EXPECT_NE(units[1].find("attn_norm"), nullptr);
  EXPECT_EQ(units[1].find("qkv"), nullptr);
  EXPECT_EQ(units[1].find("qkv_bias"), nullptr);
  c.config.adapter->whole = {"lm_head.weight"};
  EXPECT_EQ(trained_layouts(c.config).back().find("lm_head")->shape, (std::vector<int64_t>{37, 32}));
  EXPECT_EQ(trained_layouts(c.config).back().find("final_norm"), nullptr);
  c.config.adapter.reset();
  EXPECT_EQ(trained_layouts(c.config)[1].numel, c.layout.numel);
}

// As peft stores them: A [experts * rank, inputs], B [outputs, rank * experts], whose columns are those of the experts
// in turn.
TEST_F(AdapterTest, ExpertsHaveAnAdapterEach) {
  const Case c = make_case(shapes()[6]);
  const ParamLayout *a = c.trained_layout.find("down.lora_A"), *b = c.trained_layout.find("down.lora_B.0");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const int64_t rank = a->group_rows();
  EXPECT_EQ(a->shape, (std::vector<int64_t>{4 * rank, 48}));
  EXPECT_EQ(part_shape(*a, a->parts[0]), a->shape);
  EXPECT_EQ(a->parts[0].hf_name, "base_model.model.model.layers.0.mlp.experts.lora_A.weight");
  EXPECT_EQ(b->shape, (std::vector<int64_t>{4 * 32, rank}));
  EXPECT_EQ(part_shape(*b, b->parts[0]), (std::vector<int64_t>{32, rank * 4}));
  EXPECT_EQ(
      c.trained_layout.find("gate_up.lora_B.0")->parts[0].hf_name,
      "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight");
  const at::Tensor rows = randn({4 * 32, rank}), stored = groups_last(*b, rows);
  for (const auto& [expert, row, column] :
       std::vector<std::array<int64_t, 3>>{{0, 0, 0}, {3, 5, 1}, {1, 31, rank - 1}}) {
    EXPECT_EQ(
        stored.view({32, rank * 4})[row][column * 4 + expert].item<double>(),
        rows[expert * 32 + row][column].item<double>());
  }
  EXPECT_TRUE(at::equal(rows_of_groups(*b, stored).view_as(rows), rows));
  int64_t expected = 0; // a token visits two of the four
  for (const ParamLayout& param : c.trained_layout.params) {
    expected += param.is_matrix ? param.numel() / (param.groups > 1 ? 2 : 1) : 0;
  }
  EXPECT_EQ(adapter_numel(c.config, 0), expected);
  EXPECT_EQ(adapter_text(*c.config.adapter).find("base_layer"), std::string::npos);
}

// The source of a tensor that another source asks for sees the experts that it has, whose order in the file it knows.
TEST_F(AdapterTest, APartOfExpertsIsReadWithItsExperts) {
  struct Source : WeightSource {
    absl::Status status() const override {
      return absl::OkStatus();
    }
    void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const override {
      EXPECT_EQ(first, 5);
      EXPECT_EQ(part_shape(*piece.param, *piece.part), (std::vector<int64_t>{32, piece.param->shape[1] * 4}));
      dst.fill_(static_cast<double>(piece.param->group_rows()));
    }
  };
  const Case c = make_case(shapes()[6]);
  const ParamLayout& b = *c.trained_layout.find("down.lora_B.0");
  const at::Tensor values = at::zeros({7}, at::kFloat);
  copy_part(Source(), b, b.parts[0], 5, values);
  EXPECT_TRUE(at::equal(values, at::full({7}, 32, at::kFloat)));
}

TEST_F(AdapterTest, EveryGradientMatchesAutogradThroughMergedWeights) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Case c = make_case(shape);
    const at::Tensor before = c.frozen.clone();
    const Result expected = reference(c);
    for (const int64_t tile : {0, 16}) {
      const Result actual = run(c, {}, /*recompute=*/tile > 0, tile);
      EXPECT_LT(relative_error(actual.y_NH, expected.y_NH), 1e-12);
      EXPECT_LT(relative_error(actual.dx_NH, expected.dx_NH), 1e-11);
      for (const ParamLayout& param : c.trained_layout.params) {
        const auto view = [&](const Result& result) { return c.trained_layout.view(result.gradient, param.name); };
        EXPECT_LT(relative_error(view(actual), view(expected)), 1e-11) << param.name;
      }
    }
    EXPECT_TRUE(at::equal(c.frozen, before));
  }
}

TEST_F(AdapterTest, ANewGradientIsOverwrittenAndAnOldOneAddedTo) {
  const Case c = make_case(shapes()[0]);
  const Result once = run(c);
  const at::Tensor flat = at::full({c.trained_layout.numel}, std::numeric_limits<double>::quiet_NaN(), options());
  for (const bool is_new : {true, false}) {
    BlockParams grads = block_params(c.trained_layout, flat);
    for (const auto& [name, projection] : grads.projections()) {
      projection->is_new = is_new;
    }
    block_backward(c.context(/*tile_tokens=*/16), c.params(), c.dy_NH.clone(), save_input_only(c.x_NH), grads);
  }
  for (const ParamLayout& param : c.trained_layout.params) {
    EXPECT_LT(
        relative_error(c.trained_layout.view(flat, param.name), c.trained_layout.view(once.gradient, param.name) * 2),
        1e-12)
        << param.name;
  }
}

// The projection's input with an element left out or divided, whatever pass, tile and micro-batch it is in.
TEST_F(AdapterTest, DroppedElementsAreTheSameInEveryPass) {
  const Dropout dropout{.probability = 0.3, .seed = 5, .step = 7, .first_row = 100};
  for (const Shape& shape : {shapes()[0], shapes()[3]}) {
    const Case c = make_case(shape, at::kFloat);
    const Result saved = run(c, dropout);
    const Result again = run(c, dropout, /*recompute=*/true);
    EXPECT_TRUE(at::equal(saved.dx_NH, again.dx_NH));
    EXPECT_TRUE(at::equal(saved.gradient, again.gradient));
    const Result tiles = run(c, dropout, /*recompute=*/true, /*tile_tokens=*/16);
    EXPECT_LT(relative_error(tiles.y_NH, saved.y_NH), 1e-5);
    EXPECT_LT(relative_error(tiles.gradient, saved.gradient), 1e-4);
    Dropout next = dropout;
    next.step = 8;
    EXPECT_GT(relative_error(run(c, next).gradient, saved.gradient), 0.05);
    EXPECT_GT(relative_error(run(c).gradient, saved.gradient), 0.05);
  }
}

TEST_F(AdapterTest, GradientsWithDropoutMatchAutograd) {
  const Dropout dropout{.probability = 0.25, .seed = 3, .step = 2, .stream = 1};
  const at::Tensor x = leaf(randn({6, 8})), a = leaf(randn({5, 8})), b = leaf(randn({4, 5}));
  const at::Tensor weight = randn({10, 8}), dy = randn({6, 10});
  const at::Tensor mask = models::dropout(at::ones({6, 8}, options()), dropout);
  EXPECT_GT(mask.eq(0).sum().item<int64_t>(), 0);
  const at::Tensor low = at::matmul(at::matmul(x * mask, a.t()), b.t()) * 0.5;
  const at::Tensor y =
      at::matmul(x, weight.t()) + at::cat({at::zeros({6, 3}, options()), low, at::zeros({6, 3}, options())}, 1);
  const auto expected = reference_gradients(y, dy, {x, a, b});
  Projection projection{.weight_OI = weight};
  projection.adapter = {a.detach(), {{b.detach(), /*first_row=*/3, /*scale=*/0.5}}, dropout};
  Projection gradient;
  gradient.adapter = {at::zeros({5, 8}, options()), {{at::zeros({4, 5}, options())}}, {}};
  const at::Tensor input = x.detach();
  EXPECT_LT(relative_error(multiply(projection, operand_of(projection, input)), y.detach()), 1e-12);
  add_weight_gradient(projection, gradient, dy, input);
  EXPECT_LT(relative_error(input_gradient(projection, dy), expected[0]), 1e-12);
  EXPECT_LT(relative_error(gradient.adapter.a_RI, expected[1]), 1e-12);
  EXPECT_LT(relative_error(gradient.adapter.modules[0].b_OR, expected[2]), 1e-12);
}

// The frozen weight's product is rounded to float8, the adapters' are not.
TEST_F(AdapterTest, AFloat8WeightHasExactAdapters) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = randn({16, 64}, dtype), dy = randn({16, 32}, dtype), norm = randn({64}, dtype);
  const Float8Rows rows = float8_rows(randn({32, 64}, dtype));
  Projection plain{.weight_OI = rows.values_RC, .scale_O = rows.scale_R}, adapted = plain;
  adapted.adapter = {randn({3, 64}, dtype), {{randn({32, 3}, dtype), 0, 2.0}}, {}};
  const auto low = [&](const at::Tensor& input) {
    return (2.0 * at::matmul(at::matmul(input, adapted.adapter.a_RI.t()), adapted.adapter.modules[0].b_OR.t()));
  };
  const double exact = dtype == at::kFloat ? 1e-5 : 2e-2;
  const auto expect_difference = [&](const at::Tensor& with, const at::Tensor& without, const at::Tensor& expected) {
    EXPECT_LT(relative_error(with - without, expected), exact);
  };
  expect_difference(multiply(adapted, operand_of(adapted, x)), multiply(plain, operand_of(plain, x)), low(x));
  SublayerInput input{.x_NH = x, .norm_H = norm, .eps = 1e-5}, same = input;
  const at::Tensor with = multiply(adapted, operand_of(adapted, input));
  expect_difference(with, multiply(plain, operand_of(plain, same)), low(input.value()));
  const at::Tensor b = adapted.adapter.modules[0].b_OR;
  expect_difference(
      input_gradient(adapted, dy), input_gradient(plain, dy),
      2.0 * at::matmul(at::matmul(dy, b), adapted.adapter.a_RI));
}

TEST_F(AdapterTest, NothingOfAFrozenBlockHasAGradient) {
  Case c = make_case(shapes()[0]);
  c.config.adapter->modules.resize(1); // q_proj
  const UnitLayout layout = trained_layouts(c.config)[1];
  const at::Tensor flat = at::zeros({layout.numel}, options());
  BlockParams grads = block_params(layout, flat);
  EXPECT_TRUE(grads.attention.qkv.needs_input());
  EXPECT_FALSE(grads.attention.o.needs_input());
  EXPECT_FALSE(grads.mlp.down.needs_input());
  EXPECT_FALSE(grads.attn_norm_H.defined());
}

} // namespace
} // namespace distill::models
