#include "losses/logits_loss.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "losses/checks.h"
#include "losses/row_dispatch.h"

namespace distill::losses {

namespace {

void check_rows_of_columns(const at::Tensor& tensor, const char* name, const at::Tensor& like) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == 2, name, ": expected a tensor of 2 dimensions");
  TORCH_CHECK(tensor.sizes() == like.sizes(), name, ": expected shape ", like.sizes(), ", found ", tensor.sizes());
  TORCH_CHECK(tensor.device() == like.device(), name, ": expected on ", like.device(), ", found on ", tensor.device());
  TORCH_CHECK(
      tensor.size(1) <= 1 || tensor.stride(1) == 1, name, ": expected contiguous columns, found strides ",
      tensor.strides());
}

} // namespace

at::Tensor logits_loss(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& gradient_NV, const RowLaunch& launch) {
  const c10::NoGradGuard no_grad;
  const absl::Status status = validate(options);
  TORCH_CHECK(status.ok(), "loss options: ", std::string(status.message()));
  check_rows_of_columns(in.student_NV, "student_NV", in.student_NV);
  const at::Tensor& student = in.student_NV;
  const at::ScalarType compute = compute_type(student.scalar_type());
  TORCH_CHECK(student.size(1) > 0, "student_NV: expected at least one column");
  RowArgs args;
  args.student = student.data_ptr();
  args.student_stride = student.stride(0);
  args.logits_type = element_type(student.scalar_type());
  if (in.teacher_NV.defined()) {
    check_rows_of_columns(in.teacher_NV, "teacher_NV", student);
    TORCH_CHECK(
        in.teacher_NV.scalar_type() == student.scalar_type(), "teacher_NV: expected ", student.scalar_type(),
        ", found ", in.teacher_NV.scalar_type());
    args.teacher = in.teacher_NV.data_ptr();
    args.teacher_stride = in.teacher_NV.stride(0);
  } else {
    TORCH_CHECK(
        options.divergence == Divergence::kNone || options.soft_weight == 0,
        "the loss has a soft term but no teacher_NV is given");
  }
  at::Tensor targets;
  if (in.targets_N.defined()) {
    TORCH_CHECK(
        in.targets_N.scalar_type() == at::kLong && in.targets_N.dim() == 1 && in.targets_N.size(0) == student.size(0),
        "targets_N: expected Long of shape [", student.size(0), "], found ", in.targets_N.scalar_type(), " of shape ",
        in.targets_N.sizes());
    targets = in.targets_N.contiguous();
    assert_labels(targets, student.size(1));
    args.targets = targets.const_data_ptr<int64_t>();
  } else {
    TORCH_CHECK(options.hard_weight == 0, "the loss has a hard term but no targets_N is given");
  }
  at::Tensor weights;
  if (in.token_weights_N.defined()) {
    TORCH_CHECK(
        in.token_weights_N.scalar_type() == compute && in.token_weights_N.numel() == student.size(0),
        "token_weights_N: expected ", compute, " of shape [", student.size(0), "], found ",
        in.token_weights_N.scalar_type(), " of shape ", in.token_weights_N.sizes());
    weights = in.token_weights_N.contiguous();
    args.token_weights = weights.data_ptr();
  }
  if (gradient_NV.defined()) {
    check_rows_of_columns(gradient_NV, "gradient_NV", student);
    TORCH_CHECK(
        (gradient_NV.scalar_type() == at::kDouble) == (compute == at::kDouble),
        "gradient_NV: fp64 exactly for fp64 logits, found ", gradient_NV.scalar_type());
    args.gradient = gradient_NV.data_ptr();
    args.gradient_stride = gradient_NV.stride(0);
    args.gradient_type = element_type(gradient_NV.scalar_type());
  }
  const c10::DeviceGuard device(student.device());
  at::Tensor rows = at::empty({kNumRows, student.size(0)}, student.options().dtype(compute));
  args.rows = rows.data_ptr();
  args.rows_stride = student.size(0);
  args.num_rows = student.size(0);
  args.vocab = student.size(1);
  args.options = options;
  run_rows(args, student.device(), launch);
  return rows;
}

} // namespace distill::losses
