#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "losses/options.h"
#include "tests/losses/rows/row_cases.h"

// What the tests of the emulated kernels share.
namespace distill::losses::testing {

// Five rows of which one is ignored and one has no weight; two blocks to a row of the cluster kernel.
constexpr int kClusterSize = 2;
constexpr int64_t kRows = 5;
constexpr int64_t kFiveTiles = 9003; // columns: a slice of two tiles and a rest, which runs as five

struct Call {
  std::string name;
  LossOptions options;
  bool teacher = true;
};

void PrintTo(const Call& call, std::ostream* out);

using Kernel = std::function<void(const RowArgs&)>;

Kernel cluster_kernel();

// With fewer slots than a thread has groups of columns.
Kernel streaming_kernel();

// `change`: of both sides' logits. Expects what the reference makes of them.
void expect_changed_matches(
    const Kernel& kernel, RowSpec spec, const LossOptions& options, double tolerance,
    const std::function<void(at::Tensor student, at::Tensor teacher)>& change);

// The teacher's rows again, one element behind a multiple of 16 bytes and with another stride. To be kept alive.
at::Tensor move_teacher(const RowSpec& spec, Rows& rows);

} // namespace distill::losses::testing
