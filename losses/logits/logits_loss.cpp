#include "losses/logits/logits_loss.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "losses/checks.h"
#include "losses/logits/logits_backward.h"
#include "losses/rows/dispatch.h"

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

// Checks the arguments of a call. The result has no metrics yet.
RowTensors checked(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& gradient_NV, const at::Tensor& saved_SN) {
  const absl::Status status = validate(options);
  TORCH_CHECK(status.ok(), "loss options: ", std::string(status.message()));
  check_rows_of_columns(in.student_NV, "student_NV", in.student_NV);
  const at::Tensor& student = in.student_NV;
  const at::ScalarType compute = compute_type(student.scalar_type());
  TORCH_CHECK(student.size(1) > 0, "student_NV: expected at least one column");
  RowTensors rows;
  rows.student_RV = student;
  if (in.teacher_NV.defined()) {
    check_rows_of_columns(in.teacher_NV, "teacher_NV", student);
    TORCH_CHECK(
        in.teacher_NV.scalar_type() == student.scalar_type(), "teacher_NV: expected ", student.scalar_type(),
        ", found ", in.teacher_NV.scalar_type());
    rows.teacher_RV = in.teacher_NV;
  } else {
    TORCH_CHECK(
        options.divergence == Divergence::kNone || options.soft_weight == 0,
        "the loss has a soft term but no teacher_NV is given");
  }
  if (in.targets_N.defined()) {
    TORCH_CHECK(
        in.targets_N.scalar_type() == at::kLong && in.targets_N.dim() == 1 && in.targets_N.size(0) == student.size(0) &&
            in.targets_N.device() == student.device(),
        "targets_N: expected Long of shape [", student.size(0), "] on ", student.device(), ", found ",
        in.targets_N.scalar_type(), " of shape ", in.targets_N.sizes(), " on ", in.targets_N.device());
    rows.targets_R = in.targets_N.contiguous();
    assert_labels(rows.targets_R, student.size(1));
  } else {
    TORCH_CHECK(options.hard_weight == 0, "the loss has a hard term but no targets_N is given");
  }
  if (in.token_weights_N.defined()) {
    TORCH_CHECK(
        in.token_weights_N.scalar_type() == compute && in.token_weights_N.numel() == student.size(0) &&
            in.token_weights_N.device() == student.device(),
        "token_weights_N: expected ", compute, " of shape [", student.size(0), "] on ", student.device(), ", found ",
        in.token_weights_N.scalar_type(), " of shape ", in.token_weights_N.sizes(), " on ",
        in.token_weights_N.device());
    rows.token_weights_R = in.token_weights_N.contiguous();
  }
  if (gradient_NV.defined()) {
    check_rows_of_columns(gradient_NV, "gradient_NV", student);
    TORCH_CHECK(
        (gradient_NV.scalar_type() == at::kDouble) == (compute == at::kDouble),
        "gradient_NV: fp64 exactly for fp64 logits, found ", gradient_NV.scalar_type());
    rows.gradient_RV = gradient_NV;
  }
  if (saved_SN.defined()) {
    TORCH_CHECK(
        saved_SN.scalar_type() == compute && saved_SN.is_contiguous() && saved_SN.dim() == 2 &&
            saved_SN.size(0) == kNumSavedValues && saved_SN.size(1) == student.size(0) &&
            saved_SN.device() == student.device(),
        "saved_SN: expected contiguous ", compute, " of shape [", static_cast<int64_t>(kNumSavedValues), ", ",
        student.size(0), "] on ", student.device(), ", found ", saved_SN.scalar_type(), " of shape ", saved_SN.sizes(),
        " on ", saved_SN.device());
    rows.saved_SR = saved_SN;
  }
  return rows;
}

} // namespace

at::Tensor logits_loss(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& gradient_NV, const RowLaunch& launch,
    const at::Tensor& saved_SN) {
  const c10::NoGradGuard no_grad;
  RowTensors rows = checked(in, options, gradient_NV, saved_SN);
  const at::Tensor& student = in.student_NV;
  const c10::DeviceGuard device(student.device());
  rows.metrics_MR =
      at::empty({kNumTokenMetrics, student.size(0)}, student.options().dtype(compute_type(student.scalar_type())));
  run_rows(rows, options, student.device().type(), launch);
  return rows.metrics_MR;
}

void logits_backward(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& saved_SN, const at::Tensor& gradient_NV) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK(
      gradient_NV.defined() && gradient_NV.scalar_type() == in.student_NV.scalar_type(), "gradient_NV: expected ",
      in.student_NV.scalar_type(), ", the logits' dtype");
  if (in.student_NV.is_cpu()) {
    logits_loss(in, options, gradient_NV);
    return;
  }
  TORCH_CHECK(saved_SN.defined(), "saved_SN: expected what logits_loss saved");
  const RowTensors rows = checked(in, options, gradient_NV, saved_SN);
  const c10::DeviceGuard device(in.student_NV.device());
  const c10::impl::VirtualGuardImpl guard(in.student_NV.device().type());
  const char* problem = launch_logits_backward(
      row_args(rows, options), guard.getStreamNativeHandle(guard.getStream(in.student_NV.device())));
  TORCH_CHECK(problem == nullptr, "logits_backward: ", problem);
}

} // namespace distill::losses
