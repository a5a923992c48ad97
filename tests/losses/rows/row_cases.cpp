#include "tests/losses/rows/row_cases.h"

#include <gtest/gtest.h>

#include "losses/excluding_bias.h"
#include "losses/rows/dispatch.h"
#include "tests/losses/cases.h"
#include "tests/losses/device.h"
#include "tests/losses/reference.h"

namespace distill::losses::testing {

Rows make_rows(const RowSpec& spec, const LossOptions& options) {
  auto on = [&](at::ScalarType type) { return at::TensorOptions(type).device(test_device()); };
  const at::ScalarType compute = spec.logits == at::kDouble ? at::kDouble : at::kFloat;
  at::manual_seed(7);
  Rows r;
  const auto keep = [&](const at::Tensor& tensor) {
    r.owned.push_back(tensor.to(test_device()).contiguous());
    return r.owned.back().data_ptr();
  };
  // The padding between rows holds NaN: nobody may read it into a sum.
  const auto padded = [&](const at::Tensor& values, at::ScalarType type) {
    const at::Tensor nan = at::full({spec.rows, spec.padding}, NAN, at::TensorOptions(at::kDouble));
    return at::cat({values, nan}, 1).to(type);
  };
  const at::Tensor student = at::randn({spec.rows, spec.vocab}, at::TensorOptions(at::kDouble)) * spec.scale;
  const at::Tensor noise = at::randn({spec.rows, spec.vocab}, at::TensorOptions(at::kDouble)) * spec.scale;
  RowArgs& a = r.args;
  a.student = keep(padded(student, spec.logits));
  if (spec.teacher) {
    a.teacher = keep(padded(spec.gap < 1 ? student + spec.gap * noise : noise, spec.logits));
  }
  if (spec.biases) {
    const at::Tensor excluded = at::arange(spec.vocab).remainder(7).eq(spec.excludes ? 3 : -1);
    const auto bias = [&] {
      const at::Tensor values = at::randn({spec.vocab}, at::TensorOptions(at::kDouble));
      return values.masked_fill(excluded, kExcludingBias * std::max(1.0, options.temperature)).to(spec.gradient);
    };
    a.student_bias = keep(bias());
    a.teacher_bias = keep(bias());
    a.bias_type = element_type(spec.gradient);
  }
  if (spec.targets) {
    at::Tensor targets = at::randint(spec.vocab, {spec.rows}, at::TensorOptions(at::kLong));
    if (spec.rows > 2) {
      targets[1] = kIgnoreIndex;
      targets[2] = spec.vocab - 1;
    }
    if (spec.excludes) {
      targets -= targets.remainder(7).eq(3).to(at::kLong);
    }
    a.targets = static_cast<const int64_t*>(keep(targets));
  }
  if (spec.weights) {
    at::Tensor weights = at::rand({spec.rows}, at::TensorOptions(at::kDouble)) + 0.5;
    if (spec.rows > 3) {
      weights[3] = 0;
    }
    a.token_weights = keep(weights.to(compute));
  }
  r.metrics = at::full({kNumTokenMetrics, spec.rows + 3}, NAN, on(compute));
  a.metrics = r.metrics.data_ptr();
  a.metrics_stride = spec.rows + 3;
  a.num_rows = spec.rows;
  a.vocab = spec.vocab;
  a.student_stride = a.teacher_stride = a.gradient_stride = spec.vocab + spec.padding;
  a.logits_type = element_type(spec.logits);
  a.options = options;
  if (!spec.no_gradient) {
    r.gradient =
        spec.in_place ? r.owned[0] : at::full({spec.rows, spec.vocab + spec.padding}, -77.0, on(spec.gradient));
    a.gradient = r.gradient.data_ptr();
    a.gradient_type = element_type(spec.in_place ? spec.logits : spec.gradient);
  }
  return r;
}

std::pair<Rows, Rows> rows_far_from_zero(const RowSpec& spec, const LossOptions& options) {
  RowSpec exact = spec;
  exact.logits = exact.gradient = at::kDouble;
  Rows ours = make_rows(spec, options);
  Rows expected = make_rows(exact, options);
  for (const size_t side : {0, 1}) {
    if (side == 0 || spec.teacher) {
      ours.owned[side].add_(side == 0 ? 3000 : -2000);
      expected.owned[side].copy_(ours.owned[side]);
    }
  }
  reference_rows(expected.args, test_device());
  return {std::move(ours), std::move(expected)};
}

LossOptions loss_alone(LossOptions options) {
  options.metrics = MetricSet::kLoss;
  return options;
}

Rows reference_of(const RowSpec& spec, const LossOptions& options) {
  Rows expected = make_rows(spec, options);
  reference_rows(expected.args, test_device());
  return expected;
}

void expect_equal_rows(const RowSpec& spec, const Rows& ours, const Rows& expected, double tolerance) {
  for (int64_t k = 0; k < kNumTokenMetrics; ++k) {
    EXPECT_LT(
        relative_error(ours.metrics[k].narrow(0, 0, spec.rows), expected.metrics[k].narrow(0, 0, spec.rows)), tolerance)
        << "metric " << k;
  }
  EXPECT_TRUE(at::isnan(ours.metrics.narrow(1, spec.rows, 3)).all().item<bool>()) << "wrote past the rows";
  if (!spec.no_gradient) {
    const double rounding =
        spec.gradient == at::kBFloat16 || (spec.in_place && spec.logits == at::kBFloat16) ? 4e-3 : 0;
    EXPECT_LT(
        relative_error(ours.gradient.narrow(1, 0, spec.vocab), expected.gradient.narrow(1, 0, spec.vocab)),
        tolerance + rounding);
    const at::Tensor past = ours.gradient.narrow(1, spec.vocab, spec.padding);
    EXPECT_TRUE((spec.in_place ? at::isnan(past) : past == -77.0).all().item<bool>()) << "wrote past the columns";
  }
}

} // namespace distill::losses::testing
