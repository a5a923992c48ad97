#include "trainer/models/ops/delta_rule.h"

#include <ATen/ATen.h>

#include <random>

#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/gated_norm.h"
#include "trainer/models/ops/short_conv.h"

namespace distill::models {
namespace {

class DeltaRuleTest : public DeviceTest {
 protected:
  struct Case {
    DeltaSpec spec;
    SequenceInfo seq;
    at::Tensor conv_C1W;
    at::Tensor x_NC; // before the convolution
    DeltaGates gates;
    at::Tensor dout_NV;
  };

  static SequenceInfo packed(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> boundaries{0};
    for (const int64_t length : lengths) {
      boundaries.push_back(boundaries.back() + length);
    }
    return packed_sequences(1, boundaries.back(), boundaries, test_device());
  }

  // `decay`: the logarithms are from `decay` to 0.
  static Case make_case(
      const DeltaSpec& spec, const std::vector<int64_t>& lengths, at::ScalarType dtype, double decay = -1) {
    Case c{spec, packed(lengths), {}, {}, {}, {}};
    const int64_t tokens = c.seq.segments_host.back();
    const at::ScalarType arithmetic = dtype == at::kDouble ? at::kDouble : at::kFloat;
    c.conv_C1W = randn({spec.conv_channels(), 1, spec.conv_width}, dtype).mul_(0.5);
    c.x_NC = randn({tokens, spec.conv_channels()}, dtype);
    c.gates.decay_NA = randn({tokens, spec.value_heads}, arithmetic).sigmoid_().mul_(decay);
    c.gates.beta_NA = randn({tokens, spec.value_heads}, arithmetic).sigmoid_();
    c.dout_NV = randn({tokens, spec.value_width()}, dtype);
    return c;
  }

  struct Result {
    at::Tensor out_NV, dx_NC, ddecay_NA, dbeta_NA, dconv_C1W;

    std::vector<at::Tensor> of_tokens() const {
      return {out_NV, dx_NC, ddecay_NA, dbeta_NA};
    }
  };

  static Result run(const Case& c) {
    Result result;
    const at::Tensor qkv_NC = short_conv_forward(c.x_NC, c.conv_C1W, c.seq);
    const DeltaResult forward = delta_rule_forward(c.spec, qkv_NC, c.gates, c.seq);
    result.out_NV = forward.out_NV;
    const DeltaGradients gradients = delta_rule_backward(c.spec, c.dout_NV, qkv_NC, c.gates, forward.written_NV, c.seq);
    result.ddecay_NA = gradients.dgates.decay_NA;
    result.dbeta_NA = gradients.dgates.beta_NA;
    result.dx_NC = at::empty_like(c.x_NC);
    result.dconv_C1W = at::zeros(c.conv_C1W.sizes(), c.gates.decay_NA.options());
    short_conv_backward(gradients.dqkv_NC, c.x_NC, c.conv_C1W, c.seq, result.dx_NC, result.dconv_C1W);
    return result;
  }

  // Autograd through the recurrence, in fp64 on the CPU.
  static Result reference(const Case& c) {
    const auto exact = [](const at::Tensor& x) { return leaf(x.to(at::kCPU, at::kDouble)); };
    const at::Tensor x = exact(c.x_NC), conv = exact(c.conv_C1W), decay = exact(c.gates.decay_NA);
    const at::Tensor beta = exact(c.gates.beta_NA);
    const std::vector<int64_t>& ends = c.seq.segments_host;
    const at::Tensor qkv = reference_short_conv(x, conv, ends);
    const auto heads = [&](int64_t first, int64_t count, int64_t dim) {
      return qkv.slice(1, first, first + count * dim)
          .reshape({qkv.size(0), count, dim})
          .repeat_interleave(c.spec.value_heads / count, 1);
    };
    const at::Tensor out =
        reference_delta_rule(
            heads(0, c.spec.key_heads, c.spec.key_dim), heads(c.spec.key_width(), c.spec.key_heads, c.spec.key_dim),
            heads(2 * c.spec.key_width(), c.spec.value_heads, c.spec.value_dim), decay, beta, ends)
            .flatten(1);
    const auto grads = reference_gradients(out, c.dout_NV.to(at::kCPU, at::kDouble), {x, decay, beta, conv});
    return {out.detach(), grads[0], grads[1], grads[2], grads[3]};
  }

  // The gradient of a decay is a sum over the document's later tokens, whose rounding shows where decays are strong and
  // the gradient is small.
  static void expect_near(const Result& actual, const Result& expected, double tolerance, double decay_tolerance = 0) {
    expect_near("output", actual.out_NV, expected.out_NV, tolerance);
    expect_near("gradient of q, k, v", actual.dx_NC, expected.dx_NC, tolerance);
    expect_near("gradient of decays", actual.ddecay_NA, expected.ddecay_NA, std::max(tolerance, decay_tolerance));
    expect_near("gradient of beta", actual.dbeta_NA, expected.dbeta_NA, tolerance);
    expect_near("gradient of the convolution", actual.dconv_C1W, expected.dconv_C1W, tolerance);
  }

  // The error's norm relative to that of the tensor; if it is too large, also where the tensor first differs.
  static void expect_near(const char* name, const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
    const at::Tensor wanted = expected.to(at::kCPU, at::kDouble),
                     difference = actual.to(at::kCPU, at::kDouble) - wanted;
    const double error = (difference.norm() / wanted.norm()).item<double>();
    if (error < tolerance) {
      return;
    }
    const at::Tensor size = difference.abs().flatten();
    const at::Tensor wrong = size.gt(10 * tolerance * wanted.abs().max()).logical_or(size.isnan()).nonzero().flatten();
    const int64_t columns = wanted.size(-1), first = wrong.numel() > 0 ? wrong[0].item<int64_t>() : -1;
    ADD_FAILURE() << name << ": relative error " << error << " (at most " << tolerance << " is expected), largest "
                  << size.max().item<double>() << " of values up to " << wanted.abs().max().item<double>() << "; "
                  << wrong.numel() << " of " << size.numel() << " elements are far off, the first one in row "
                  << (first < 0 ? -1 : first / columns) << ", column " << (first < 0 ? -1 : first % columns);
  }

  static std::vector<DeltaSpec> specs() {
    return {
        {.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 4},
        {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 6},
        {.key_heads = 2, .value_heads = 6, .key_dim = 12, .value_dim = 34, .conv_width = 3},
        {.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128}};
  }

  // Sizes that CUDA computes in chunks in bf16.
  static std::vector<DeltaSpec> chunk_specs() {
    return {
        {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128},
        {.key_heads = 1, .value_heads = 4, .key_dim = 128, .value_dim = 128},
        {.key_heads = 3, .value_heads = 6, .key_dim = 16, .value_dim = 24},
        {.key_heads = 2, .value_heads = 6, .key_dim = 64, .value_dim = 120},
        {.key_heads = 1, .value_heads = 1, .key_dim = 72, .value_dim = 8}};
  }
};

TEST_F(DeltaRuleTest, EveryGradientMatchesAutogradThroughTheRecurrence) {
  for (const DeltaSpec& spec : specs()) {
    for (const double decay : {-0.05, -1.0, -20.0}) {
      SCOPED_TRACE(testing::Message() << spec.key_dim << " x " << spec.value_dim << ", decay " << decay);
      const Case c = make_case(spec, {1, 37, 2, 0, 70, 3, 64, 5}, at::kDouble, decay);
      expect_near(run(c), reference(c), 1e-12);
      const Case in_fp32 = make_case(spec, {1, 37, 2, 0, 70, 3, 64, 5}, at::kFloat, decay);
      expect_near(run(in_fp32), reference(in_fp32), 3e-6, /*decay_tolerance=*/3e-5);
    }
  }
}

TEST_F(DeltaRuleTest, LowPrecisionRoundsInputsAndResultsAlone) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Case c = make_case(specs()[3], {130, 1, 66}, dtype, -0.1);
    expect_near(run(c), reference(c), dtype == at::kHalf ? 1.5e-3 : 1e-2);
  }
}

// Small enough for compute-sanitizer's racecheck: a whole chunk and a few more tokens, in the kernels of chunks.
TEST_F(DeltaRuleTest, AFewTokensInChunks) {
  for (const DeltaSpec& spec :
       {chunk_specs()[4], DeltaSpec{.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128}}) {
    const Case c = make_case(spec, {70, 0, 3}, at::kBFloat16, -0.1);
    expect_near(run(c), reference(c), 1e-2, /*decay_tolerance=*/2e-2);
  }
}

// The rule alone: against itself in fp64 from the same elements. Few tokens, whole chunks, and some more than those.
TEST_F(DeltaRuleTest, InBFloat16TheErrorIsThatOfRoundedProducts) {
  for (const DeltaSpec& spec : chunk_specs()) {
    for (const double decay : {-0.02, -1.0, -30.0}) {
      SCOPED_TRACE(
          testing::Message() << spec.key_heads << " x " << spec.key_dim << ", " << spec.value_heads << " x "
                             << spec.value_dim << ", decay " << decay);
      const Case c = make_case(spec, {1, 64, 63, 0, 200, 65, 5, 128, 16, 321}, at::kBFloat16, decay);
      Case exact = c;
      exact.x_NC = c.x_NC.to(at::kDouble);
      exact.gates = {c.gates.decay_NA.to(at::kDouble), c.gates.beta_NA.to(at::kDouble)};
      const at::Tensor dout = c.dout_NV.to(at::kDouble);
      const DeltaResult forward = delta_rule_forward(spec, c.x_NC, c.gates, c.seq);
      const DeltaResult exact_forward = delta_rule_forward(spec, exact.x_NC, exact.gates, c.seq);
      const DeltaGradients back = delta_rule_backward(spec, c.dout_NV, c.x_NC, c.gates, forward.written_NV, c.seq);
      const DeltaGradients exact_back =
          delta_rule_backward(spec, dout, exact.x_NC, exact.gates, exact_forward.written_NV, c.seq);
      constexpr double kTolerance = 8e-3; // 2^-7
      expect_near("output", forward.out_NV, exact_forward.out_NV, kTolerance);
      expect_near("written", forward.written_NV, exact_forward.written_NV, kTolerance);
      const auto channels = [](const at::Tensor& x, int64_t first, int64_t count) {
        return x.slice(1, first, first + count);
      };
      const at::Tensor &found = back.dqkv_NC, &wanted = exact_back.dqkv_NC;
      const int64_t keys = spec.key_width();
      expect_near("gradient of q", channels(found, 0, keys), channels(wanted, 0, keys), kTolerance);
      expect_near("gradient of k", channels(found, keys, keys), channels(wanted, keys, keys), kTolerance);
      expect_near(
          "gradient of v", channels(found, 2 * keys, spec.value_width()),
          channels(wanted, 2 * keys, spec.value_width()), kTolerance);
      expect_near("gradient of decays", back.dgates.decay_NA, exact_back.dgates.decay_NA, 2 * kTolerance);
      expect_near("gradient of beta", back.dgates.beta_NA, exact_back.dgates.beta_NA, kTolerance);
    }
  }
}

// The bits of each document's results are those of the document alone, whatever stands before and after it.
TEST_F(DeltaRuleTest, PackedEqualsSingleBitForBit) {
  std::mt19937_64 random(11);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 9; ++round) {
    const bool large = round == 8; // heads of the size that models have
    const int64_t dim = large ? 128 : 16;
    DeltaSpec spec{.key_heads = 2, .value_heads = 4, .key_dim = dim, .value_dim = dim};
    std::vector<int64_t> lengths{1, 63, 64, 65, between(1, large ? 700 : 5000)};
    while (lengths.size() < 12) {
      lengths.push_back(between(1, 300));
    }
    std::shuffle(lengths.begin(), lengths.end(), random);
    const at::ScalarType dtype = round % 2 == 0 && !large ? at::kFloat : at::kBFloat16;
    const Case all = make_case(spec, lengths, dtype, -0.3);
    const std::vector<at::Tensor> packed_results = run(all).of_tokens();
    for (size_t s = 0; s + 1 < all.seq.segments_host.size(); ++s) {
      const int64_t first = all.seq.segments_host[s], end = all.seq.segments_host[s + 1];
      const auto rows = [&](const at::Tensor& x) { return x.slice(0, first, end).contiguous(); };
      Case one = all;
      one.seq = packed({end - first});
      one.x_NC = rows(all.x_NC);
      one.dout_NV = rows(all.dout_NV);
      one.gates = {rows(all.gates.decay_NA), rows(all.gates.beta_NA)};
      const std::vector<at::Tensor> single = run(one).of_tokens();
      for (size_t i = 0; i < single.size(); ++i) {
        EXPECT_TRUE(at::equal(single[i], packed_results[i].slice(0, first, end)))
            << "result " << i << " of tokens " << first << " to " << end;
      }
    }
  }
}

TEST_F(DeltaRuleTest, EveryRunHasTheSameBits) {
  for (const Case& c :
       {make_case(specs()[1], {3, 200, 61}, at::kFloat), make_case(specs()[3], {3, 200, 61}, at::kBFloat16)}) {
    const Result first = run(c);
    for (int i = 0; i < 3; ++i) {
      const Result again = run(c);
      EXPECT_TRUE(at::equal(again.out_NV, first.out_NV));
      EXPECT_TRUE(at::equal(again.dx_NC, first.dx_NC));
      EXPECT_TRUE(at::equal(again.dconv_C1W, first.dconv_C1W));
      EXPECT_TRUE(at::equal(again.ddecay_NA, first.ddecay_NA));
      EXPECT_TRUE(at::equal(again.dbeta_NA, first.dbeta_NA));
    }
  }
}

// Gates at their limits, keys and values of zero, decays that underflow: everything stays finite, and equals the
// recurrence.
TEST_F(DeltaRuleTest, GatesAtTheirLimitsGiveFiniteResults) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 24; ++round) {
    const bool bf16 = round % 3 == 2;
    const DeltaSpec spec =
        bf16 ? chunk_specs()[static_cast<size_t>(round / 3) % 5] : specs()[static_cast<size_t>(round) % 3];
    std::vector<int64_t> lengths;
    for (int i = 0; i < 6; ++i) {
      lengths.push_back(1 + static_cast<int64_t>(random() % 80));
    }
    Case c = make_case(spec, lengths, bf16 ? at::kBFloat16 : (round % 2 == 0 ? at::kDouble : at::kFloat));
    const auto limits = [&](at::Tensor& gate, double low, double high) {
      const at::Tensor choice = at::rand(gate.sizes(), at::kDouble).to(gate.device());
      gate.masked_fill_(choice < 0.3, low).masked_fill_(choice > 0.7, high);
    };
    limits(c.gates.decay_NA, round % 4 == 0 ? -1e4 : -100.0, 0.0);
    limits(c.gates.beta_NA, 0.0, 1.0);
    if (round % 4 == 3) {
      c.x_NC.slice(0, 2, 40).zero_(); // q, k and v of zero
    }
    const Result actual = run(c);
    for (const at::Tensor& result :
         {actual.out_NV, actual.dx_NC, actual.ddecay_NA, actual.dbeta_NA, actual.dconv_C1W}) {
      EXPECT_TRUE(result.isfinite().all().item<bool>()) << "round " << round;
    }
    const Result expected = reference(c);
    const bool fp64 = c.x_NC.scalar_type() == at::kDouble;
    const double out_tolerance = bf16 ? 2e-2 : (fp64 ? 1e-11 : 2e-4), tolerance = bf16 ? 3e-2 : (fp64 ? 1e-10 : 2e-3);
    EXPECT_LT(relative_error(actual.out_NV.cpu(), expected.out_NV), out_tolerance) << "round " << round;
    EXPECT_LT(relative_error(actual.dx_NC.cpu(), expected.dx_NC), tolerance) << "round " << round;
  }
}

TEST_F(DeltaRuleTest, GatesMatchAutograd) {
  const at::Tensor ba = randn({29, 6}).mul_(3), a_log = randn({3}), dt_bias = randn({3});
  ba[4][3] = 50; // beyond softplus' threshold
  const at::Tensor ddecay = randn({29, 3}), dbeta = randn({29, 3});
  at::Tensor da_log = at::ones_like(a_log), ddt_bias = at::ones_like(dt_bias);
  const DeltaGates gates = delta_gates(ba, a_log, dt_bias);
  const at::Tensor dba =
      delta_gates_backward(gates, ba, a_log, dt_bias, {ddecay.clone(), dbeta.clone()}, da_log, ddt_bias);
  const at::Tensor x = leaf(ba), rate = leaf(a_log), bias = leaf(dt_bias);
  const at::Tensor decay = -at::exp(rate) * at::softplus(x.slice(1, 3) + bias), beta = at::sigmoid(x.slice(1, 0, 3));
  const auto grads = reference_gradients(at::cat({decay, beta}, 1), at::cat({ddecay, dbeta}, 1), {x, rate, bias});
  EXPECT_LT(relative_error(gates.decay_NA, decay.detach()), 1e-14);
  EXPECT_LT(relative_error(gates.beta_NA, beta.detach()), 1e-14);
  EXPECT_LT(relative_error(dba, grads[0]), 1e-13);
  EXPECT_LT(relative_error(da_log - 1, grads[1]), 1e-12);
  EXPECT_LT(relative_error(ddt_bias - 1, grads[2]), 1e-12);
}

TEST_F(DeltaRuleTest, GatedNormMatchesAutograd) {
  const at::Tensor wide = randn({70, 5 * 24 + 7}), x_NV = randn({70, 5 * 24}), weight = randn({24}).add_(1);
  const at::Tensor z_NV = wide.slice(1, 7), dy_NV = randn({70, 5 * 24}); // rows of the gate are strided
  at::Tensor dwide = at::zeros_like(wide), dz_NV = dwide.slice(1, 7), grad = at::ones({24}, options());
  const at::Tensor y_NV = gated_norm_forward(x_NV, z_NV, weight, 1e-5);
  const at::Tensor dx_NV = gated_norm_backward(dy_NV, x_NV, z_NV, weight, 1e-5, dz_NV, grad);
  const at::Tensor x = leaf(x_NV), z = leaf(z_NV), w = leaf(weight);
  const at::Tensor expected = reference_rms_norm(x.view({70, 5, 24}), w, 1e-5).flatten(1) * z * at::sigmoid(z);
  const auto grads = reference_gradients(expected, dy_NV, {x, z, w});
  EXPECT_LT(relative_error(y_NV, expected.detach()), 1e-13);
  EXPECT_LT(relative_error(dx_NV, grads[0]), 1e-12);
  EXPECT_LT(relative_error(dz_NV, grads[1]), 1e-12);
  EXPECT_LT(relative_error(grad - 1, grads[2]), 1e-12);
}

} // namespace
} // namespace distill::models
