#include "tests/losses/emulation/kernel_checks.h"

#include <gtest/gtest.h>

#include "tests/losses/emulation/rows.h"
#include "tests/losses/reference.h"

namespace distill::losses::testing {

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name;
}

Kernel cluster_kernel() {
  return [](const RowArgs& args) { emulate_cluster_rows(args, kClusterSize); };
}

Kernel streaming_kernel() {
  return [](const RowArgs& args) { emulate_streaming_rows(args, /*blocks=*/1, /*slots=*/1); };
}

void expect_changed_matches(
    const Kernel& kernel, RowSpec spec, const LossOptions& options, double tolerance,
    const std::function<void(at::Tensor student, at::Tensor teacher)>& change) {
  spec.rows = kRows;
  SCOPED_TRACE(
      ::testing::Message() << "V " << spec.vocab << " padding " << spec.padding << " T " << options.temperature
                           << " metrics " << static_cast<int>(options.metrics));
  Rows ours = make_rows(spec, options);
  Rows expected = make_rows(spec, options);
  for (const Rows& rows : {ours, expected}) {
    change(rows.owned[0], spec.teacher ? rows.owned[1] : at::Tensor());
  }
  reference_rows(expected.args, at::kCPU);
  ASSERT_NO_THROW(kernel(ours.args));
  expect_equal_rows(spec, ours, expected, tolerance);
}

at::Tensor move_teacher(const RowSpec& spec, Rows& rows) {
  const int64_t stride = spec.vocab + spec.padding + 1;
  at::Tensor moved = at::full({spec.rows * stride}, NAN, at::TensorOptions(spec.logits));
  moved.view({spec.rows, stride}).narrow(1, 1, spec.vocab).copy_(rows.owned[1].narrow(1, 0, spec.vocab));
  rows.args.teacher = static_cast<const char*>(moved.data_ptr()) + moved.element_size();
  rows.args.teacher_stride = stride;
  return moved;
}

} // namespace distill::losses::testing
