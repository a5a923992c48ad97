#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "losses/rows/row_args.h"

// Rows of random logits as the row kernels take them, and the comparison with the reference.
namespace distill::losses::testing {

struct Rows {
  RowArgs args;
  std::vector<at::Tensor> owned;
  at::Tensor metrics;
  at::Tensor gradient;
};

struct RowSpec {
  int64_t rows = 5;
  int64_t vocab = 1000;
  int64_t padding = 24; // stride - vocab
  at::ScalarType logits = at::kFloat;
  at::ScalarType gradient = at::kFloat;
  bool teacher = true;
  bool targets = true;
  bool weights = true;
  bool biases = false;
  bool excludes = false; // the biases exclude every seventh column, which is no label
  bool in_place = false;
  bool no_gradient = false;
  double gap = 1.0;
  double scale = 3.0; // standard deviation of the logits
};

// On test_device(). The padding between rows holds NaN.
Rows make_rows(const RowSpec& spec, const LossOptions& options);

// The same with logits of thousands, where fp32 has 2e-4 as the unit in the last place of a normaliser's logarithm; and
// what reference_rows() makes in fp64 of the same fp32 logits.
std::pair<Rows, Rows> rows_far_from_zero(const RowSpec& spec, const LossOptions& options);

// The options with the loss alone as metrics.
LossOptions loss_alone(LossOptions options);

// What reference_rows() makes of the same rows.
Rows reference_of(const RowSpec& spec, const LossOptions& options);

// `ours`: make_rows() of the spec after a kernel has run. Expects relative errors of each metric and of the gradient
// below `tolerance` (and the rounding of a bf16 gradient), and nothing written beside the rows.
void expect_equal_rows(const RowSpec& spec, const Rows& ours, const Rows& expected, double tolerance);

} // namespace distill::losses::testing
