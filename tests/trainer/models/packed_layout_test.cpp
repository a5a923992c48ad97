#include "trainer/models/packed_layout.h"

#include "tests/trainer/models/counting_weights.h"
#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/ops/float8.h"
#include "trainer/models/random_weights.h"

namespace distill::models {
namespace {

ModelConfig make_config(LayerKind kind = {}) {
  kind.attention.qkv_bias = true;
  kind.attention.qk_norm.emplace();
  ModelConfig config = llama_like(
      {.vocab = 37,
       .hidden = 64,
       .ffn = 112,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 16,
       .max_positions = 64},
      kind);
  config.initializer_range = 0.2;
  return config;
}

class PackedLayoutTest : public DeviceTest {
 protected:
  static at::ScalarType compute_dtype() {
    return test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  }
  static ModelConfig with_exceptions(ModelConfig config, const std::vector<std::string>& exceptions) {
    config.float8 = *Float8Products::all_but(exceptions, block_products(config));
    return config;
  }
  static UnitLayout packed(const ModelConfig& config) {
    return packed_layout(block_layout(config, 1), config.float8, compute_dtype());
  }
  static at::Tensor read(const ModelConfig& config, int64_t begin, int64_t count) {
    at::Tensor bytes = at::full({count}, 77, options(at::kByte));
    read_packed(*random_weights(config, 5), config, packed(config), begin, bytes);
    return bytes;
  }
  // The block's weights in the compute dtype.
  static at::Tensor plain(const ModelConfig& config) {
    const UnitLayout layout = block_layout(config, 1);
    at::Tensor flat = at::empty({layout.numel}, options(compute_dtype()));
    random_weights(config, 5)->copy_range(layout, 0, flat);
    return flat;
  }
};

TEST_F(PackedLayoutTest, ParametersDoNotOverlapAndAreAligned) {
  const UnitLayout layout = packed(with_exceptions(make_config(), {"1.o"}));
  EXPECT_TRUE(layout.packed());
  int64_t end = 0;
  for (const ParamLayout& param : layout.params) {
    EXPECT_EQ(param.offset % 128, 0) << param.name;
    EXPECT_GE(param.offset, end) << param.name;
    end = param.offset + param.numel() * static_cast<int64_t>(c10::elementSize(*param.stored));
  }
  EXPECT_GE(layout.numel, end);
  EXPECT_EQ(layout.find("down")->stored, at::kFloat8_e4m3fn);
  EXPECT_EQ(layout.find("down.scale")->shape, std::vector<int64_t>{64});
  EXPECT_EQ(layout.find("o")->stored, compute_dtype());
  EXPECT_EQ(layout.find("o.scale"), nullptr);
}

TEST_F(PackedLayoutTest, ABlockWithoutFloat8ProductsIsNotPacked) {
  const ModelConfig config = with_exceptions(make_config(), {"1"});
  EXPECT_FALSE(packed(config).packed());
  EXPECT_TRUE(packed_layout(block_layout(config, 0), config.float8, compute_dtype()).packed());
}

TEST_F(PackedLayoutTest, MatricesAreRoundedFromTheFoldersValues) {
  const ModelConfig config = with_exceptions(make_config(), {"o"});
  const UnitLayout layout = packed(config);
  const at::Tensor bytes = read(config, 0, layout.numel);
  const BlockParams params = block_params(layout, bytes);
  // The folder's dtype is fp32, whatever the compute dtype is.
  const UnitLayout elements = block_layout(config, 1);
  at::Tensor flat = at::empty({elements.numel}, options(at::kFloat));
  random_weights(config, 5)->copy_range(elements, 0, flat);
  const BlockParams exact = block_params(elements, flat);
  const auto expect_rounded = [](const Projection& float8, const Projection& weight) {
    const Float8Rows rows = float8_rows(weight.weight_OI);
    EXPECT_TRUE(at::equal(float8.weight_OI.view(at::kByte), rows.values_RC.view(at::kByte)));
    EXPECT_TRUE(at::equal(float8.scale_O, rows.scale_R));
  };
  expect_rounded(params.attention.qkv, exact.attention.qkv);
  expect_rounded(params.mlp.gate_up, exact.mlp.gate_up);
  expect_rounded(params.mlp.down, exact.mlp.down);
  EXPECT_FALSE(params.attention.o.is_float8());
  EXPECT_TRUE(at::equal(params.attention.o.weight_OI, exact.attention.o.weight_OI.to(compute_dtype())));
  EXPECT_TRUE(at::equal(params.attn_norm_H, exact.attn_norm_H.to(compute_dtype())));
  EXPECT_TRUE(at::equal(params.attention.qkv.bias_O, exact.attention.qkv.bias_O.to(compute_dtype())));
}

TEST_F(PackedLayoutTest, EveryRangeHasTheBytesOfTheWhole) {
  const ModelConfig config = with_exceptions(make_config(), {"1.qkv"});
  const int64_t total = packed(config).numel;
  const at::Tensor whole = read(config, 0, total);
  for (const int64_t part : {int64_t{64}, int64_t{1984}, total / 3 / 64 * 64, total}) {
    for (int64_t begin = 0; begin < total; begin += part) {
      const int64_t count = std::min(part, total - begin);
      ASSERT_TRUE(at::equal(read(config, begin, count), whole.narrow(0, begin, count))) << begin << ", " << count;
    }
  }
}

TEST_F(PackedLayoutTest, ReadersThatShareTheScalesReadOnlyTheRowsOfTheirRange) {
  const ModelConfig config = with_exceptions(make_config(), {"1.o"});
  const UnitLayout layout = packed(config);
  const auto read_range = [&](int64_t begin, int64_t count, const CountingWeights& weights, const TakeLargest& share) {
    at::Tensor bytes = at::full({count}, 77, options(at::kByte));
    read_packed(weights, config, layout, begin, bytes, share);
    return bytes;
  };
  const CountingWeights once;
  const at::Tensor whole = read_range(0, layout.numel, once, {});
  int64_t stored = 0, longest_row = 0;
  for (const ParamLayout& param : block_layout(config, 1).params) {
    stored += param.numel();
    longest_row = std::max(longest_row, param.is_matrix ? param.shape[1] : 0);
  }
  EXPECT_EQ(once.read(), stored);
  for (const int64_t readers : {2, 3, 7}) {
    const int64_t part = (layout.numel / readers / kParamAlignment + 1) * kParamAlignment;
    const auto each_range = [&](const auto& use) {
      for (int64_t begin = 0; begin < layout.numel; begin += part) {
        use(begin, std::min(part, layout.numel - begin));
      }
    };
    // Every reader knows these scales; then follow all of them.
    at::Tensor scales;
    each_range([&](int64_t begin, int64_t count) {
      read_range(begin, count, CountingWeights(), [&](const at::Tensor& own) {
        scales = scales.defined() ? at::maximum(scales, own) : own.clone();
      });
    });
    each_range([&](int64_t begin, int64_t count) {
      const CountingWeights weights;
      const at::Tensor bytes = read_range(begin, count, weights, [&](at::Tensor own) { own.copy_(scales); });
      EXPECT_TRUE(at::equal(bytes, whole.narrow(0, begin, count))) << readers << " readers, from byte " << begin;
      // A byte of the range is at most one weight; a row that is cut at either end is read whole.
      EXPECT_LE(weights.read(), count + 2 * longest_row) << readers << " readers, from byte " << begin;
    });
  }
}

class Float8BlockTest : public PackedLayoutTest {
 protected:
  static constexpr int64_t kTokens = 48;

  // The block on random tokens with the config's float8 products.
  static at::Tensor forward(const ModelConfig& config, const at::Tensor& x_NH) {
    const SequenceInfo seq = dense_sequences(2, kTokens / 2, test_device());
    const auto ropes = rope_angles(make_rope_tables(config.ropes, kTokens / 2, test_device()), seq);
    const UnitLayout layout = packed(config);
    const at::Tensor flat = layout.packed() ? read(config, 0, layout.numel) : plain(config);
    return block_forward({config.layer(1), seq, ropes}, block_params(layout, flat), x_NH, /*saved=*/nullptr);
  }
  static double error(const at::Tensor& y_NH, const at::Tensor& expected_NH, const at::Tensor& x_NH) {
    const at::Tensor added = expected_NH.to(at::kDouble) - x_NH.to(at::kDouble);
    return ((y_NH.to(at::kDouble) - expected_NH.to(at::kDouble)).norm() / added.norm()).item<double>();
  }
};

TEST_F(Float8BlockTest, EachProductAddsTheErrorOfItsRounding) {
  for (const LayerKind& kind : {LayerKind{}, with_norms_after()}) {
    const ModelConfig config = make_config(kind);
    const at::Tensor x = randn({kTokens, 64}, compute_dtype());
    const at::Tensor exact = forward(with_exceptions(config, {"qkv", "o", "gate_up", "down"}), x);
    const double all = error(forward(with_exceptions(config, {}), x), exact, x);
    EXPECT_GT(all, 5e-3);
    EXPECT_LT(all, 0.15);
    double squares = 0;
    const BlockProducts products = block_products(config);
    for (const std::string& product : products[1]) {
      ModelConfig one = config;
      one.float8.add({1, product});
      const double single = error(forward(one, x), exact, x);
      EXPECT_GT(single, 1e-3) << product;
      EXPECT_LT(single, all * 1.2) << product;
      squares += single * single;
    }
    EXPECT_NEAR(std::sqrt(squares) / all, 1, 0.35);
  }
}

TEST_F(Float8BlockTest, WithoutProductsItIsThePlainBlock) {
  const ModelConfig config = make_config();
  const at::Tensor x = randn({kTokens, 64}, compute_dtype());
  EXPECT_TRUE(at::equal(forward(config, x), forward(with_exceptions(config, {"0-1"}), x)));
}

TEST_F(Float8BlockTest, AProductEqualsItsFormula) {
  // Only gate and up are in float8: the block's output must be that of the formula on the same rounded operands.
  const ModelConfig config = with_exceptions(make_config(with_norms_after()), {"qkv", "o", "down"});
  const at::Tensor x = randn({kTokens, 64}, compute_dtype());
  const SequenceInfo seq = dense_sequences(2, kTokens / 2, test_device());
  const auto ropes = rope_angles(make_rope_tables(config.ropes, kTokens / 2, test_device()), seq);
  const UnitLayout layout = packed(config);
  const at::Tensor bytes = read(config, 0, layout.numel);
  const BlockParams params = block_params(layout, bytes);
  BlockSaved saved;
  block_forward({config.layer(1), seq, ropes}, params, x, &saved);
  const Float8Rows input = float8_rows(saved.mid_NH);
  const at::Tensor expected = at::mm(
      float8_to_float(input).to(at::kDouble),
      float8_to_float({params.mlp.gate_up.weight_OI, params.mlp.gate_up.scale_O}).to(at::kDouble).t());
  EXPECT_LT(relative_error(saved.mlp.gate_up_N2F, expected), test_device().is_cuda() ? 1e-2 : 1e-5);
}

} // namespace
} // namespace distill::models
