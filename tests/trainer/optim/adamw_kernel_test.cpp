#include "trainer/optim/adamw_kernel.h"

#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdio>

#include "trainer/models/ops/kernel_launch.h"

namespace distill::optim {
namespace {

constexpr double kLr = 3e-3;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;
constexpr double kEps = 1e-8;

struct State {
  at::Tensor params, gradient, exp_avg, exp_avg_sq;
};

class AdamWKernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(3);
  }

  static at::TensorOptions options(at::ScalarType dtype = at::kFloat) {
    return at::TensorOptions().dtype(dtype).device(at::kCUDA);
  }

  static State random_state(int64_t n) {
    return {
        at::randn({n}, options()), at::randn({n}, options()), at::randn({n}, options()).mul_(0.1),
        at::rand({n}, options()).mul_(0.01)};
  }

  static State copy(const State& s) {
    return {s.params.clone(), s.gradient.clone(), s.exp_avg.clone(), s.exp_avg_sq.clone()};
  }

  static void* at_element(at::Tensor tensor, int64_t element) {
    return static_cast<char*>(tensor.mutable_data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
  }

  // From element `first` on, so that pointers need not be aligned. On the state's device.
  static void step(
      State& s, at::Tensor bf16, int64_t first, double decay, int64_t decay_begin, const at::Tensor& count,
      const at::Tensor& scale, const at::Tensor& found_inf) {
    AdamWArgs args{};
    args.params = s.params.mutable_data_ptr<float>() + first;
    args.gradient = at_element(s.gradient, first);
    args.bf16_gradient = s.gradient.scalar_type() == at::kBFloat16;
    args.exp_avg = at_element(s.exp_avg, first);
    args.exp_avg_sq = at_element(s.exp_avg_sq, first);
    args.bf16_moments = s.exp_avg.scalar_type() == at::kBFloat16;
    args.unit = 7;
    args.first = 640 + first;
    args.bf16_copy = bf16.defined() ? bf16.mutable_data_ptr<at::BFloat16>() + first : nullptr;
    args.n = s.params.numel() - first;
    args.decay_begin = decay_begin;
    // A CPU's step reads the factors that the device has made.
    const at::Tensor factors = at::empty({sizeof(AdamWFactors)}, options(at::kByte));
    const AdamWStep shared{
        kLr,
        kBeta1,
        kBeta2,
        kEps,
        decay,
        count.const_data_ptr<float>(),
        scale.const_data_ptr<float>(),
        found_inf.const_data_ptr<float>(),
        static_cast<AdamWFactors*>(factors.mutable_data_ptr())};
    models::run_kernel("factors", launch_adamw_factors, shared, at::Device(at::kCUDA, 0));
    const at::Tensor here = s.params.is_cpu() ? factors.cpu() : factors;
    args.factors = static_cast<const AdamWFactors*>(here.const_data_ptr());
    if (s.params.is_cpu()) {
      adamw_on_cpu(args, /*threads=*/3);
    } else {
      models::run_kernel("adamw", launch_adamw, args, at::Device(at::kCUDA, 0));
    }
  }

  static void aten_step(
      State& s, double decay, const at::Tensor& count, const at::Tensor& scale, const at::Tensor& found_inf) {
    at::_fused_adamw_(
        {s.params}, {s.gradient}, {s.exp_avg}, {s.exp_avg_sq}, {}, {count}, kLr, kBeta1, kBeta2, decay, kEps,
        /*amsgrad=*/false, /*maximize=*/false, scale, found_inf);
  }

  static void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-6 * (1 + expected.abs().max().item<double>()));
  }
};

// Sizes around the vector width and beyond one turn of the grid, aligned and not.
TEST_F(AdamWKernelTest, MatchesTheFusedStepOfATen) {
  const at::Tensor scale = at::full({1}, 2.5, options());
  const at::Tensor finite = at::zeros({1}, options());
  for (const int64_t n : {1, 3, 4, 1027, 9'000'003}) {
    for (const int64_t first : {0, 1}) {
      if (first >= n) {
        continue;
      }
      const State start = random_state(n);
      State ours = copy(start);
      const at::Tensor bf16 = at::zeros({n}, options(at::kBFloat16));
      State theirs{
          start.params.narrow(0, first, n - first).clone(), start.gradient.narrow(0, first, n - first).clone(),
          start.exp_avg.narrow(0, first, n - first).clone(), start.exp_avg_sq.narrow(0, first, n - first).clone()};
      for (int count = 1; count <= 3; ++count) {
        const at::Tensor step_count = at::full({1}, count, options());
        theirs.gradient.copy_(start.gradient.narrow(0, first, n - first));
        step(ours, bf16, first, 0.1, 0, step_count, scale, finite);
        aten_step(theirs, 0.1, step_count, scale, finite);
      }
      SCOPED_TRACE(n);
      expect_close(ours.params.narrow(0, first, n - first), theirs.params);
      expect_close(ours.exp_avg.narrow(0, first, n - first), theirs.exp_avg);
      expect_close(ours.exp_avg_sq.narrow(0, first, n - first), theirs.exp_avg_sq);
      EXPECT_TRUE(at::equal(ours.gradient, start.gradient));
      EXPECT_TRUE(at::equal(ours.params.narrow(0, 0, first), start.params.narrow(0, 0, first)));
      EXPECT_TRUE(
          at::equal(bf16.narrow(0, first, n - first), ours.params.narrow(0, first, n - first).to(at::kBFloat16)));
    }
  }
}

TEST_F(AdamWKernelTest, DecayBeginsWhereItIsTold) {
  const at::Tensor one = at::ones({1}, options());
  const at::Tensor finite = at::zeros({1}, options());
  for (const int64_t boundary : {0, 2, 64, 1000}) {
    const State start = random_state(1000);
    State ours = copy(start), decayed = copy(start), plain = copy(start);
    step(ours, {}, 0, 0.5, boundary, one, one, finite);
    aten_step(decayed, 0.5, one, one, finite);
    aten_step(plain, 0.0, one, one, finite);
    expect_close(
        ours.params.narrow(0, 0, boundary == 0 ? 1 : boundary),
        (boundary == 0 ? decayed : plain).params.narrow(0, 0, boundary == 0 ? 1 : boundary));
    if (boundary < 1000) {
      expect_close(ours.params.slice(0, boundary), decayed.params.slice(0, boundary));
    }
  }
}

TEST_F(AdamWKernelTest, ASkippedStepWritesNothing) {
  const at::Tensor one = at::ones({1}, options());
  const State start = random_state(1000);
  State ours = copy(start);
  ours.gradient.fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor bf16 = at::full({1000}, 7, options(at::kBFloat16));
  step(ours, bf16, 0, 0.1, 0, one, one, /*found_inf=*/one);
  EXPECT_TRUE(at::equal(ours.params, start.params));
  EXPECT_TRUE(at::equal(ours.exp_avg, start.exp_avg));
  EXPECT_TRUE(at::equal(ours.exp_avg_sq, start.exp_avg_sq));
  EXPECT_TRUE(bf16.eq(7).all().item<bool>());
}

// Every combination of dtypes: the host's cores may update a part of the parameters.
TEST_F(AdamWKernelTest, TheCpuComputesTheSameBits) {
  for (const auto moments : {at::kFloat, at::kBFloat16}) {
    for (const auto gradients : {at::kFloat, at::kBFloat16}) {
      for (const auto& [n, first] : {std::pair{3, 0}, {1027, 1}, {100'003, 0}, {3'000'001, 1}}) {
        State ours = random_state(n);
        ours.gradient = ours.gradient.mul(at::exp(at::randn({n}, options()).mul(4))).to(gradients);
        ours.exp_avg = ours.exp_avg.to(moments);
        ours.exp_avg_sq = ours.exp_avg_sq.to(moments);
        State cpu{ours.params.cpu(), ours.gradient.cpu(), ours.exp_avg.cpu(), ours.exp_avg_sq.cpu()};
        const at::Tensor bf16 = at::zeros({n}, options(at::kBFloat16)), cpu_bf16 = bf16.cpu();
        for (int count = 1; count <= 3; ++count) {
          const at::Tensor step_count = at::full({1}, count, options()), scale = at::full({1}, 2.7, options());
          const at::Tensor finite = at::zeros({1}, options());
          step(ours, bf16, first, 0.1, 5, step_count, scale, finite);
          step(cpu, cpu_bf16, first, 0.1, 5, step_count, scale, finite);
        }
        SCOPED_TRACE(absl::StrCat(n, c10::toString(moments), c10::toString(gradients)));
        EXPECT_TRUE(at::equal(ours.params.cpu(), cpu.params));
        EXPECT_TRUE(at::equal(ours.exp_avg.cpu(), cpu.exp_avg));
        EXPECT_TRUE(at::equal(ours.exp_avg_sq.cpu(), cpu.exp_avg_sq));
        EXPECT_TRUE(at::equal(bf16.cpu(), cpu_bf16));
      }
    }
  }
}

// Prints time and bandwidth at a quarter of a Llama-8B block, beside ATen's step and cast.
TEST_F(AdamWKernelTest, SpeedBesideATen) {
  constexpr int64_t kNumel = 218'112'000 / 4;
  constexpr int kRuns = 20;
  State s = random_state(kNumel);
  at::Tensor bf16 = at::zeros({kNumel}, options(at::kBFloat16));
  const at::Tensor one = at::ones({1}, options());
  const at::Tensor finite = at::zeros({1}, options());
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream({at::kCUDA, 0});
  const auto milliseconds = [&](const std::function<void()>& call) {
    call();
    c10::Event start(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    for (int i = 0; i < kRuns; ++i) {
      call();
    }
    end.record(stream);
    end.synchronize();
    return start.elapsedTime(end) / kRuns;
  };
  const double ours = milliseconds([&] { step(s, bf16, 0, 0.1, 0, one, one, finite); });
  const double theirs = milliseconds([&] {
    aten_step(s, 0.1, one, one, finite);
    bf16.copy_(s.params);
  });
  std::printf(
      "adamw %.1f M elements %8.1f us %6.0f GB/s   ATen %8.1f us  x%.2f\n", kNumel * 1e-6, ours * 1e3,
      kNumel * 30.0 / ours * 1e-6, theirs * 1e3, theirs / ours);
  EXPECT_LT(ours, theirs * 1.1);
}

} // namespace
} // namespace distill::optim
