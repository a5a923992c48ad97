// Top-k and samples made from a teacher's hidden states, against fp64 and against what they claim.
#include "losses/head/capture.h"

#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

CaptureInputs make_inputs(ProblemSpec spec = {}) {
  spec.teacher_hidden = 0;
  const LinearHeadInputs in = make_problem(spec);
  CaptureInputs capture;
  capture.hidden_NG = in.hidden_NH;
  capture.weight_VG = in.weight_VH;
  capture.bias_V = in.bias_V;
  capture.vocab_size = spec.vocab_size;
  return capture;
}

at::Tensor log_probs(const CaptureInputs& in) {
  const auto fp64 = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  const int64_t vocab = in.vocab_size > 0 ? in.vocab_size : in.weight_VG.size(0);
  const at::Tensor logits = naive_logits(fp64(in.hidden_NG), fp64(in.weight_VG), fp64(in.bias_V), in.softcap, vocab);
  return (logits / in.temperature).log_softmax(1);
}

at::Tensor keys_of(int64_t tokens) {
  return (at::arange(tokens, at::TensorOptions(at::kLong)) * 1000003 + 17).to(test_device());
}

struct Case {
  std::string name;
  ProblemSpec problem;
  double softcap = 0;
  double temperature = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> cases() {
  const ProblemSpec plain;
  ProblemSpec everything = plain;
  everything.biases = true;
  everything.vocab = 120;
  everything.vocab_size = 101;
  ProblemSpec wide = plain;
  wide.tokens = 5;
  wide.vocab = 50257;
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const std::string name = at::toString(dtype);
    ProblemSpec a = plain, b = everything, c = wide;
    a.dtype = b.dtype = c.dtype = dtype;
    all.push_back({name + "_plain", a});
    all.push_back({name + "_everything", b, 5, 1.7});
    all.push_back({name + "_wide", c});
  }
  return all;
}

class Capturing : public ::testing::TestWithParam<Case> {};

TEST_P(Capturing, TopKIsThatOfTheFp64Distribution) {
  CaptureInputs in = make_inputs(GetParam().problem);
  in.softcap = GetParam().softcap;
  in.temperature = GetParam().temperature;
  const at::Tensor expected = log_probs(in);
  const double tolerance = in.hidden_NG.scalar_type() == at::kDouble ? 1e-12 : 5e-6;
  for (const int64_t k : {1, 2, 33, 101}) {
    for (const int64_t chunk : {1, 4, 64}) {
      SCOPED_TRACE(::testing::Message() << k << ' ' << chunk);
      const TopK out = capture_topk(in, k, {.chunk_size = chunk});
      EXPECT_EQ(out.ids_NK.scalar_type(), at::kInt);
      const at::Tensor ids = out.ids_NK.to(at::kLong);
      EXPECT_LT(relative_error(out.log_probs_NK, std::get<0>(expected.topk(k))), tolerance);
      EXPECT_LT(relative_error(out.log_probs_NK, expected.gather(1, ids)), tolerance) << "ids of other columns";
      const at::Tensor tail = expected.exp().scatter(1, ids, 0.0).sum(1);
      EXPECT_LT(relative_error(out.tail_N, tail), tolerance);
    }
  }
}

// The bias makes tokens so sure that 1 - sum of the entries' probabilities is 0 in fp32.
TEST(Capture, ATinyTailKeepsItsDigits) {
  CaptureInputs in = make_inputs({.biases = true, .dtype = at::kFloat});
  in.bias_V[3] = 50;
  const TopK out = capture_topk(in, 1, {});
  const at::Tensor expected = log_probs(in);
  const at::Tensor tail = expected.exp().scatter(1, out.ids_NK.to(at::kLong), 0.0).sum(1);
  EXPECT_LT(tail.max().item<double>(), 1e-9);
  EXPECT_LT(((out.tail_N - tail) / tail).abs().max().item<double>(), 1e-4);
}

TEST_P(Capturing, SamplesAreOfTheRightDistributionWithTheirWeights) {
  CaptureInputs in = make_inputs(GetParam().problem);
  in.softcap = GetParam().softcap;
  in.temperature = GetParam().temperature;
  const at::Tensor p = log_probs(in).exp().cpu();
  for (const double exponent : {1.0, 0.6}) {
    const SampleOptions options{.samples = 1024, .seed = 3, .exponent = exponent};
    const Samples out = capture_samples(in, keys_of(in.hidden_NG.size(0)), options, {.chunk_size = 4});
    const at::Tensor ids = out.ids_NS.cpu().to(at::kLong);
    const at::Tensor weights = out.weights_NS.cpu().to(at::kDouble);
    const at::Tensor draws = p.pow(exponent) / p.pow(exponent).sum(1, true);
    const at::Tensor expected = p.gather(1, ids) / draws.gather(1, ids) / 1024;
    EXPECT_LT(relative_error(weights, expected), in.hidden_NG.scalar_type() == at::kDouble ? 1e-6 : 1e-5);
    if (exponent == 1) {
      EXPECT_TRUE(weights.eq(1.0 / 1024).all().item<bool>());
    }
    // Of the most probable tokens, each as often as it should be: within 5 standard deviations.
    const at::Tensor counts = at::zeros_like(p).scatter_add(1, ids, at::ones_like(weights));
    const at::Tensor deviation = (1024 * draws * (1 - draws)).sqrt();
    const at::Tensor error = (counts - 1024 * draws).abs() / (deviation + 0.5);
    EXPECT_LT(error.max().item<double>(), 6) << exponent;
    EXPECT_LT(error.square().mean().item<double>(), 1.5) << exponent;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Capturing, ::testing::ValuesIn(cases()), [](const auto& c) { return c.param.name; });

// sum w f(id) estimates sum p f: here f is the column's own number, whose mean over tokens and draws is known.
TEST(Capture, WeightedSamplesEstimateExpectations) {
  const CaptureInputs in = make_inputs({.tokens = 400});
  const at::Tensor p = log_probs(in).exp();
  const at::Tensor f = (at::arange(101, p.options()) / 101).cos();
  const at::Tensor exact = (p * f).sum(1);
  for (const double exponent : {1.0, 0.5}) {
    const Samples out = capture_samples(in, keys_of(400), {.samples = 64, .seed = 11, .exponent = exponent}, {});
    const at::Tensor estimate = (out.weights_NS * f.index({out.ids_NS.to(at::kLong)})).sum(1);
    const at::Tensor error = estimate - exact;
    const double standard_error = error.std().item<double>() / 20;
    EXPECT_LT(std::abs(error.mean().item<double>()), 4 * standard_error) << exponent;
    EXPECT_LT(standard_error, 0.01);
  }
}

// What a cache stores depends on seed and key alone: not on the chunk, the other tokens, or their order.
TEST(Capture, DrawsFollowFromSeedAndKey) {
  const CaptureInputs in = make_inputs({.tokens = 37, .vocab = 3001});
  const at::Tensor keys = keys_of(37);
  const SampleOptions options{.samples = 25, .seed = 5};
  const Samples whole = capture_samples(in, keys, options, {});
  for (const int64_t chunk : {1, 5, 16}) {
    const Samples chunked = capture_samples(in, keys, options, {.chunk_size = chunk});
    EXPECT_TRUE(at::equal(chunked.ids_NS, whole.ids_NS)) << chunk;
    EXPECT_TRUE(at::equal(chunked.weights_NS, whole.weights_NS)) << chunk;
  }
  CaptureInputs shuffled = in;
  const at::Tensor order = at::randperm(37, at::TensorOptions(at::kLong)).to(test_device());
  shuffled.hidden_NG = in.hidden_NG.index_select(0, order);
  const Samples moved = capture_samples(shuffled, keys.index_select(0, order), options, {.chunk_size = 8});
  EXPECT_TRUE(at::equal(moved.ids_NS, whole.ids_NS.index_select(0, order)));
  SampleOptions other = options;
  other.seed = 6;
  EXPECT_FALSE(at::equal(capture_samples(in, keys, other, {}).ids_NS, whole.ids_NS));
  EXPECT_FALSE(at::equal(capture_samples(in, keys + 1, options, {}).ids_NS, whole.ids_NS));
}

// A vocabulary has many tokens that were never trained and are equal: the lower ids come first, in every run.
TEST(Capture, EqualLogitsGoByColumn) {
  CaptureInputs in = make_inputs({.vocab = 2000, .dtype = at::kFloat});
  in.hidden_NG.mul_(4).round_(); // small integers, whose products are exact: many more columns are equal
  in.weight_VG.mul_(4).round_();
  in.weight_VG.narrow(0, 100, 1800).zero_();
  const TopK out = capture_topk(in, 1000, {});
  const at::Tensor expected =
      std::get<1>(at::sort(log_probs(in).to(at::kFloat), /*stable=*/true, /*dim=*/1, /*descending=*/true));
  EXPECT_TRUE(at::equal(out.ids_NK.to(at::kLong), expected.narrow(1, 0, 1000)));
}

TEST(Capture, ColumnsWithoutProbabilityAreNeverDrawn) {
  CaptureInputs in = make_inputs({.biases = true, .dtype = at::kFloat});
  in.bias_V.narrow(0, 0, 40).fill_(-INFINITY);
  in.bias_V.narrow(0, 90, 11).fill_(-INFINITY);
  const Samples out = capture_samples(in, keys_of(13), {.samples = 1024, .exponent = 0.3}, {});
  EXPECT_GE(out.ids_NS.min().item<int64_t>(), 40);
  EXPECT_LT(out.ids_NS.max().item<int64_t>(), 90);
  const TopK top = capture_topk(in, 60, {});
  EXPECT_TRUE(at::isinf(top.log_probs_NK.narrow(1, 50, 10)).all().item<bool>());
  EXPECT_EQ(top.tail_N.abs().max().item<double>(), 0);
}

TEST(Capture, NanIsNotHidden) {
  CaptureInputs in = make_inputs({.tokens = 3, .dtype = at::kFloat});
  in.hidden_NG[1][0] = NAN;
  const TopK top = capture_topk(in, 5, {});
  EXPECT_TRUE(at::isnan(top.log_probs_NK[1]).all().item<bool>());
  EXPECT_TRUE(std::isnan(top.tail_N[1].item<double>()));
  EXPECT_TRUE(at::isfinite(top.log_probs_NK[0]).all().item<bool>());
  const Samples out = capture_samples(in, keys_of(3), {.samples = 4}, {});
  EXPECT_TRUE(at::isnan(out.weights_NS[1]).all().item<bool>());
  EXPECT_TRUE(at::isfinite(out.weights_NS[2]).all().item<bool>());
}

// A student that is trained from what was captured sees the loss of the whole teacher, as far as k goes.
TEST(Capture, WhatIsCapturedIsWhatTheHeadTakes) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .temperature = 1.5};
  const LinearHeadInputs whole = make_problem({.targets = false});
  CaptureInputs teacher;
  teacher.hidden_NG = whole.teacher_hidden_NG;
  teacher.weight_VG = whole.teacher_weight_VG;
  teacher.temperature = 1.5;
  const TopK top = capture_topk(teacher, 101, {});
  LinearHeadInputs in = whole;
  in.teacher_hidden_NG = in.teacher_weight_VG = at::Tensor();
  in.topk_ids_NK = top.ids_NK;
  in.topk_log_probs_NK = top.log_probs_NK;
  in.tail_N = top.tail_N;
  in.teacher_temperature = 1.5;
  const HeadResult ours = run_head(in, options);
  const HeadResult expected = run_head(whole, options);
  EXPECT_LT(relative_error(ours.metrics_MN[kLoss], expected.metrics_MN[kLoss]), 1e-10);
  EXPECT_LT(relative_error(ours.grads.hidden_NH, expected.grads.hidden_NH), 1e-9);
}

TEST(Capture, NoTokensGiveNone) {
  const CaptureInputs in = make_inputs({.tokens = 0});
  EXPECT_EQ(capture_topk(in, 4, {}).ids_NK.sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(capture_samples(in, keys_of(0), {.samples = 4}, {}).ids_NS.sizes(), at::IntArrayRef({0, 4}));
}

TEST(Capture, MistakesNameTheArgument) {
  const CaptureInputs in = make_inputs();
  expect_error([&] { capture_topk(in, 0, {}); }, "k: expected 1 to 1024, found 0");
  expect_error([&] { capture_topk(in, 102, {}); }, "k: expected at most the vocabulary, 101, found 102");
  expect_error([&] { capture_samples(in, keys_of(12), {}, {}); }, "keys_N: expected Long of shape [13]");
  expect_error([&] { capture_samples(in, keys_of(13), {.samples = 2000}, {}); }, "samples: expected 1 to 1024");
  expect_error([&] { capture_samples(in, keys_of(13), {.exponent = 0}, {}); }, "exponent: expected a number in (0, 1]");
  CaptureInputs wide;
  wide.hidden_NG = at::zeros({1, 1}).to(test_device());
  wide.weight_VG = at::zeros({300000, 1}).to(test_device());
  expect_error([&] { capture_topk(wide, 4, {.memory_cap_mb = 1}); }, "the smallest value that works is");
}

} // namespace
} // namespace distill::losses::testing
