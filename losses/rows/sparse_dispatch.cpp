#include "losses/rows/sparse_dispatch.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "losses/excluding_bias.h"
#include "losses/rows/cpu/sparse_kernel.h"
#include "losses/rows/cuda/sparse/launch.h"
#include "losses/vector_math.h"

namespace distill::losses {

namespace {

SparseRowArgs sparse_args(const RowTensors& rows, const SparseTensors& t, const LossOptions& options) {
  SparseRowArgs args;
  args.rows = row_args(rows, options);
  args.teacher.ids = t.ids_NK.const_data_ptr<int32_t>();
  args.teacher.entries = t.ids_NK.size(1);
  args.teacher.ids_stride = t.ids_NK.stride(0);
  if (t.values_NK.defined()) {
    args.teacher.values = t.values_NK.const_data_ptr();
    args.teacher.value_type = entry_type(t.values_NK.scalar_type());
    args.teacher.values_stride = t.values_NK.stride(0);
  }
  if (t.tail_N.defined()) {
    args.teacher.tail = t.tail_N.const_data_ptr();
    args.teacher.tail_type = entry_type(t.tail_N.scalar_type());
  }
  args.teacher.index = t.index_R.defined() ? t.index_R.const_data_ptr<int64_t>() : nullptr;
  args.entry_logits = t.entry_logits_RK.data_ptr();
  args.entry_stride = t.entry_logits_RK.stride(0);
  return args;
}

void run_stage(const SparseRowArgs& args, SparseStage stage, c10::Device device) {
  const char* problem = nullptr;
  if (device.is_cpu()) {
    problem = sparse_rows_cpu(args, stage);
  } else {
    const c10::impl::VirtualGuardImpl guard(device.type());
    problem = launch_sparse_rows(args, stage, guard.getStreamNativeHandle(guard.getStream(device)));
  }
  TORCH_CHECK(problem == nullptr, problem);
}

// Runs the row kernel on logits that need neither bias nor softcap, without a teacher and a gradient. Top-k has taken
// the entries out, so that label smoothing, which sums logits, comes later.
void run_rows_alone(RowTensors rows, LossOptions options, bool topk, c10::DeviceType kernels) {
  rows.student_bias_V = at::Tensor();
  rows.gradient_RV = at::Tensor();
  options.divergence = Divergence::kNone;
  options.student_softcap = 0;
  options.label_smoothing = topk ? 0 : options.label_smoothing;
  run_rows(rows, options, kernels);
}

} // namespace

EntryType entry_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return EntryType::kFloat32;
    case c10::ScalarType::BFloat16:
      return EntryType::kBFloat16;
    case c10::ScalarType::Half:
      return EntryType::kFloat16;
    case c10::ScalarType::Double:
      return EntryType::kFloat64;
    default:
      TORCH_CHECK(false, "expected fp32, bf16, fp16 or fp64, found ", type);
  }
}

void apply_bias_and_softcap(at::Tensor logits_RV, const at::Tensor& bias_V, double softcap) {
  if (bias_V.defined()) {
    logits_RV.add_(bias_V);
  }
  if (softcap > 0) {
    prepare_vector_math();
    logits_RV.div_(softcap).tanh_().mul_(softcap);
    if (bias_V.defined()) {
      logits_RV.add_(at::where(bias_V <= kExcludingBias, bias_V, 0));
    }
  }
}

void run_sparse_rows(
    const RowTensors& rows, const SparseTensors& teacher, LossOptions options, c10::DeviceType kernels) {
  options.metrics = MetricSet::kAll; // the loss kernel uses some of the row kernel's
  apply_bias_and_softcap(rows.student_RV, rows.student_bias_V, options.student_softcap);
  const bool topk = teacher.tail_N.defined();
  if (rows.student_RV.is_meta()) {
    run_rows_alone(rows, options, topk, kernels);
    return;
  }
  const SparseRowArgs args = sparse_args(rows, teacher, options);
  run_stage(args, SparseStage::kTake, rows.student_RV.device());
  run_rows_alone(rows, options, topk, kernels);
  run_stage(args, SparseStage::kLoss, rows.student_RV.device());
}

void run_topk_log_probs(
    const RowTensors& rows, const SparseTensors& teacher, double temperature, const at::Tensor& tail_R,
    c10::DeviceType kernels) {
  const LossOptions options{.divergence = Divergence::kNone, .temperature = temperature, .soft_weight = 0};
  if (rows.student_RV.is_meta()) {
    run_rows_alone(rows, options, /*topk=*/true, kernels);
    return;
  }
  SparseRowArgs args = sparse_args(rows, teacher, options);
  args.teacher.tail = tail_R.const_data_ptr();
  run_stage(args, SparseStage::kTake, rows.student_RV.device());
  run_rows_alone(rows, options, /*topk=*/true, kernels);
  args.rows.metrics = tail_R.data_ptr();
  run_stage(args, SparseStage::kLogProbs, rows.student_RV.device());
}

} // namespace distill::losses
