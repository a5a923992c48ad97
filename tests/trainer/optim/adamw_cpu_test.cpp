#include "trainer/optim/adamw_cpu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/optim/adamw_math.h"

namespace distill::optim {
namespace {

struct State {
  at::Tensor params, gradient, exp_avg, exp_avg_sq, copy;

  static State random(int64_t n, at::ScalarType moments, at::ScalarType gradients) {
    return {
        at::randn({n}), at::randn({n}).mul(at::randn({n}).mul(4).exp()).to(gradients), at::randn({n}).to(moments),
        at::rand({n}).to(moments), at::zeros({n}, at::kBFloat16)};
  }
  State clone() const {
    return {params.clone(), gradient.clone(), exp_avg.clone(), exp_avg_sq.clone(), copy.clone()};
  }
  AdamWArgs args(const AdamWFactors& factors, int64_t decay_begin) const {
    AdamWArgs args{};
    args.params = params.mutable_data_ptr<float>();
    args.gradient = gradient.const_data_ptr();
    args.bf16_gradient = gradient.scalar_type() == at::kBFloat16;
    args.exp_avg = exp_avg.mutable_data_ptr();
    args.exp_avg_sq = exp_avg_sq.mutable_data_ptr();
    args.bf16_moments = exp_avg.scalar_type() == at::kBFloat16;
    args.unit = 5;
    args.first = 1281; // not a multiple of the group of elements that share random words
    args.bf16_copy = copy.mutable_data_ptr();
    args.n = params.numel();
    args.decay_begin = decay_begin;
    args.factors = &factors;
    return args;
  }
  bool equals(const State& other) const {
    return at::equal(params, other.params) && at::equal(exp_avg, other.exp_avg) &&
        at::equal(exp_avg_sq, other.exp_avg_sq) && at::equal(copy, other.copy);
  }
};

AdamWFactors factors(float found_inf = 0) {
  const float count = 3, scale = 2.7F;
  AdamWFactors made;
  adamw_factors_on_cpu({1e-2, 0.9, 0.95, 1e-8, 0.1, &count, &scale, &found_inf, &made});
  return made;
}

float value_of(const at::Tensor& tensor, int64_t i) {
  return tensor[i].item<float>();
}

// One element after the other, with the mathematics that the kernel for GPUs shares.
void plain_step(const State& s, const AdamWFactors& f, int64_t decay_begin) {
  const AdamWArgs args = s.args(f, decay_begin);
  for (int64_t i = 0; i < args.n; ++i) {
    float param = value_of(s.params, i), first = value_of(s.exp_avg, i), second = value_of(s.exp_avg_sq, i);
    update_element(f, i >= decay_begin, value_of(s.gradient, i), param, first, second);
    uint32_t words[kRoundingGroup];
    models::rounding_words(f.step, args.unit, kMomentsDraw, (args.first + i) / kRoundingGroup, words);
    const uint32_t word = words[(args.first + i) % kRoundingGroup];
    s.params[i] = param;
    s.exp_avg[i] = args.bf16_moments ? widen(round_stochastically(first, word & 0xFFFFU)) : first;
    s.exp_avg_sq[i] = args.bf16_moments ? widen(round_stochastically(second, word >> 16)) : second;
    s.copy[i] = param;
  }
}

class AdamWOnCpu : public testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(
    MomentsAndGradients, AdamWOnCpu,
    testing::Combine(testing::Values(at::kFloat, at::kBFloat16), testing::Values(at::kFloat, at::kBFloat16)));

TEST_P(AdamWOnCpu, EveryInstructionSetAndNumberOfThreadsGivesTheBitsOfAPlainLoop) {
  const auto [moments, gradients] = GetParam();
  at::manual_seed(1);
  const AdamWFactors f = factors();
  for (const int64_t n : {1, 63, 64, 500}) {
    for (const int64_t decay_begin : {int64_t{0}, int64_t{37}, n}) {
      const State start = State::random(n, moments, gradients);
      const State expected = start.clone();
      plain_step(expected, f, decay_begin);
      for (const auto range : {portable::adamw_range, avx2::adamw_range, avx512::adamw_range}) {
#if defined(__x86_64__)
        const bool missing = (range == avx2::adamw_range && !__builtin_cpu_supports("avx2")) ||
            (range == avx512::adamw_range && !__builtin_cpu_supports("avx512vl"));
        if (missing) {
          continue;
        }
#endif
        const State ours = start.clone();
        range(ours.args(f, decay_begin), 0, n);
        EXPECT_TRUE(ours.equals(expected)) << n << " " << decay_begin;
      }
    }
  }
  const State start = State::random(100'003, moments, gradients);
  const State one = start.clone(), three = start.clone();
  adamw_on_cpu(one.args(f, 20'000), 1);
  adamw_on_cpu(three.args(f, 20'000), 3);
  EXPECT_TRUE(three.equals(one));
  EXPECT_FALSE(one.equals(start));
}

TEST_P(AdamWOnCpu, ASkippedStepWritesNothing) {
  const auto [moments, gradients] = GetParam();
  const AdamWFactors skipped = factors(/*found_inf=*/1);
  const State start = State::random(100, moments, gradients);
  const State ours = start.clone();
  adamw_on_cpu(ours.args(skipped, 0), 1);
  EXPECT_TRUE(ours.equals(start));
}

} // namespace
} // namespace distill::optim
