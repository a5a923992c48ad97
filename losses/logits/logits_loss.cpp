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

// The arguments of a call, and the tensors that they point into.
struct Call {
  RowArgs args;
  at::Tensor targets;
  at::Tensor weights;
};

Call call_of(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& gradient_NV, const at::Tensor& saved_SN) {
  const absl::Status status = validate(options);
  TORCH_CHECK(status.ok(), "loss options: ", std::string(status.message()));
  check_rows_of_columns(in.student_NV, "student_NV", in.student_NV);
  const at::Tensor& student = in.student_NV;
  const at::ScalarType compute = compute_type(student.scalar_type());
  TORCH_CHECK(student.size(1) > 0, "student_NV: expected at least one column");
  Call call;
  RowArgs& args = call.args;
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
  if (in.targets_N.defined()) {
    TORCH_CHECK(
        in.targets_N.scalar_type() == at::kLong && in.targets_N.dim() == 1 && in.targets_N.size(0) == student.size(0),
        "targets_N: expected Long of shape [", student.size(0), "], found ", in.targets_N.scalar_type(), " of shape ",
        in.targets_N.sizes());
    call.targets = in.targets_N.contiguous();
    assert_labels(call.targets, student.size(1));
    args.targets = call.targets.const_data_ptr<int64_t>();
  } else {
    TORCH_CHECK(options.hard_weight == 0, "the loss has a hard term but no targets_N is given");
  }
  if (in.token_weights_N.defined()) {
    TORCH_CHECK(
        in.token_weights_N.scalar_type() == compute && in.token_weights_N.numel() == student.size(0),
        "token_weights_N: expected ", compute, " of shape [", student.size(0), "], found ",
        in.token_weights_N.scalar_type(), " of shape ", in.token_weights_N.sizes());
    call.weights = in.token_weights_N.contiguous();
    args.token_weights = call.weights.data_ptr();
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
  if (saved_SN.defined()) {
    TORCH_CHECK(
        saved_SN.scalar_type() == compute && saved_SN.is_contiguous() && saved_SN.dim() == 2 &&
            saved_SN.size(0) == kNumSavedValues && saved_SN.size(1) == student.size(0) &&
            saved_SN.device() == student.device(),
        "saved_SN: expected contiguous ", compute, " of shape [", static_cast<int64_t>(kNumSavedValues), ", ",
        student.size(0), "] on ", student.device(), ", found ", saved_SN.scalar_type(), " of shape ", saved_SN.sizes(),
        " on ", saved_SN.device());
    args.saved = saved_SN.data_ptr();
  }
  args.metrics_stride = student.size(0);
  args.num_rows = student.size(0);
  args.vocab = student.size(1);
  args.options = options;
  return call;
}

} // namespace

at::Tensor logits_loss(
    const LogitsInputs& in, const LossOptions& options, const at::Tensor& gradient_NV, const RowLaunch& launch,
    const at::Tensor& saved_SN) {
  const c10::NoGradGuard no_grad;
  Call call = call_of(in, options, gradient_NV, saved_SN);
  const at::Tensor& student = in.student_NV;
  const c10::DeviceGuard device(student.device());
  at::Tensor metrics =
      at::empty({kNumTokenMetrics, student.size(0)}, student.options().dtype(compute_type(student.scalar_type())));
  call.args.metrics = metrics.data_ptr();
  run_rows(call.args, student.device(), launch);
  return metrics;
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
  const Call call = call_of(in, options, gradient_NV, saved_SN);
  const c10::DeviceGuard device(in.student_NV.device());
  const c10::impl::VirtualGuardImpl guard(in.student_NV.device().type());
  const char* problem =
      launch_logits_backward(call.args, guard.getStreamNativeHandle(guard.getStream(in.student_NV.device())));
  TORCH_CHECK(problem == nullptr, "logits_backward: ", problem);
}

} // namespace distill::losses
