#include "losses/rows/dispatch.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "losses/rows/cpu/row_kernel.h"

namespace distill::losses {

ElementType element_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return ElementType::kFloat32;
    case c10::ScalarType::BFloat16:
      return ElementType::kBFloat16;
    case c10::ScalarType::Double:
      return ElementType::kFloat64;
    default:
      TORCH_CHECK(false, "expected fp32, bf16 or fp64, found ", type);
  }
}

namespace {

// Returns memory for the CPU kernel while it runs; on the meta device it is only counted.
at::Tensor cpu_scratch(int64_t num_rows, int64_t vocab, ElementType logits_type, c10::Device device) {
  return at::empty(
      {rows_cpu_scratch_bytes(num_rows, vocab, logits_type)}, at::TensorOptions().dtype(at::kByte).device(device));
}

void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

int64_t stride_or_zero(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.stride(0) : 0;
}

} // namespace

RowArgs row_args(const RowTensors& t, const LossOptions& options) {
  RowArgs args;
  args.student = t.student_RV.data_ptr();
  args.teacher = data_or_null(t.teacher_RV);
  args.student_bias = data_or_null(t.student_bias_V);
  args.teacher_bias = data_or_null(t.teacher_bias_V);
  args.targets = t.targets_R.defined() ? t.targets_R.const_data_ptr<int64_t>() : nullptr;
  args.token_weights = data_or_null(t.token_weights_R);
  args.gradient = data_or_null(t.gradient_RV);
  args.metrics = data_or_null(t.metrics_MR);
  args.saved = data_or_null(t.saved_SR);
  args.logits_type = element_type(t.student_RV.scalar_type());
  if (t.gradient_RV.defined()) {
    args.gradient_type = element_type(t.gradient_RV.scalar_type());
  }
  if (t.student_bias_V.defined() || t.teacher_bias_V.defined()) {
    args.bias_type = element_type((t.student_bias_V.defined() ? t.student_bias_V : t.teacher_bias_V).scalar_type());
  }
  args.num_rows = t.student_RV.size(0);
  args.vocab = t.student_RV.size(1);
  args.student_stride = t.student_RV.stride(0);
  args.teacher_stride = stride_or_zero(t.teacher_RV);
  args.gradient_stride = stride_or_zero(t.gradient_RV);
  args.metrics_stride = stride_or_zero(t.metrics_MR.defined() ? t.metrics_MR : t.saved_SR);
  args.options = options;
  return args;
}

void run_rows(const RowTensors& t, const LossOptions& options, c10::DeviceType kernels, const RowLaunch& launch) {
  if (!t.student_RV.is_meta()) {
    run_rows(row_args(t, options), t.student_RV.device(), launch);
  } else if (kernels == at::kCPU) {
    cpu_scratch(t.student_RV.size(0), t.student_RV.size(1), element_type(t.student_RV.scalar_type()), at::kMeta);
  }
}

void run_rows(const RowArgs& args, c10::Device device, const RowLaunch& launch) {
  if (device.is_cpu()) {
    const at::Tensor scratch = cpu_scratch(args.num_rows, args.vocab, args.logits_type, at::kCPU);
    rows_cpu(args, scratch.data_ptr());
    return;
  }
  // The device-generic interface makes this file the same in builds without CUDA.
  const c10::impl::VirtualGuardImpl guard(device.type());
  const char* problem = launch_rows(args, guard.getStreamNativeHandle(guard.getStream(device)), launch);
  TORCH_CHECK(problem == nullptr, "row kernel: ", problem);
}

} // namespace distill::losses
