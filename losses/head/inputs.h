#pragma once

#include <ATen/core/Tensor.h>

#include "losses/options.h"
#include "losses/teacher_kind.h"

// The loss head's inputs and gradient buffers, their checks, and the dtypes that follow from them.
// Shapes: N tokens, V vocabulary rows, H student hidden size, G teacher hidden size, K entries of top-k, S samples.
namespace distill::losses {

// All on one device: CPU, CUDA, or meta for a run that only allocates (losses/meta_device.h). No tensor is changed.
struct LinearHeadInputs {
  at::Tensor hidden_NH; // fp32, bf16 or fp64
  at::Tensor weight_VH; // the same dtype
  at::Tensor bias_V; // undefined: none; the same dtype
  at::Tensor teacher_hidden_NG; // undefined: no teacher, hard loss only; fp32 or bf16 (fp64 with an fp64 student)
  at::Tensor teacher_weight_VG; // teacher_hidden's dtype; may have another number of rows than weight_VH
  at::Tensor teacher_bias_V; // undefined: none; teacher_hidden's dtype
  // In place of teacher_hidden: the k most probable tokens and the probability of all others (TeacherKind::kTopK). Up
  // to kMaxEntries a token; rows of ignored tokens are not read. Normalised over the k + 1 outcomes.
  at::Tensor topk_ids_NK; // int32, distinct in a row; -1: no entry
  at::Tensor topk_log_probs_NK; // nats; fp32, bf16, fp16 or fp64
  at::Tensor tail_N; // fp32 or fp64; what rounding left below 0 counts as 0
  // In place of teacher_hidden: draws, with weights such that sum_s w_s f(id_s) estimates sum_v p_v f(v)
  // (TeacherKind::kSampled). Up to kMaxEntries a token; a repeated id counts as often as it occurs.
  at::Tensor sample_ids_NS; // int32; -1: no draw
  at::Tensor sample_weights_NS; // fp32, bf16, fp16 or fp64
  double teacher_temperature = 1.0; // at which top-k or samples were taken: the loss's temperature must be the same
  at::Tensor targets_N; // int64, kIgnoreIndex: no loss; undefined: every token counts and there is no hard loss
  at::Tensor token_weights_N; // fp32 (fp64 for fp64 inputs), undefined: 1
  int64_t vocab_size = 0; // columns that exist on both sides; the rest have probability 0. 0: min of both V
  int64_t valid_tokens = -1; // how many targets are not kIgnoreIndex, where known: only those are computed. A
                             // wrong count is an error (on CUDA a device-side assertion: the host is never asked)
  c10::DeviceType meta_device = c10::DeviceType::CUDA; // for meta tensors: the device type whose allocations are made,
                                                       // CPU or CUDA; not read otherwise
};

// Gradients of grad_scale * sum of metrics_MN[kLoss].
struct LinearHeadGrads {
  at::Tensor hidden_NH; // written (not accumulated); hidden's dtype; zero at ignored tokens; undefined: not computed
  at::Tensor weight_VH; // fp32 (fp64 for fp64 inputs), accumulated into; undefined: frozen lm_head
  at::Tensor bias_V; // likewise; undefined: none
  double grad_scale = 1.0; // usually 1 / (valid tokens of the whole batch over all ranks)
  bool accumulate = true; // false: weight_VH and bias_V are written and need not be zero before, which saves a pass
};

// Throws c10::Error naming the tensor, what was expected and what was found.
void check_linear_head(const LinearHeadInputs& inputs, const LossOptions& options, const LinearHeadGrads* grads);

// Which of the three the inputs give.
TeacherKind teacher_kind(const LinearHeadInputs& inputs);

// Columns that exist on both sides.
int64_t effective_vocab(const LinearHeadInputs& inputs);

// fp32 (fp64 for fp64 inputs), unless bf16 is asked for and both sides are bf16.
at::ScalarType logits_type(const LinearHeadInputs& inputs, const LossOptions& options);

// The one type in which biases are read: theirs, or fp32 where they differ; the logits' where they are added to them
// before the row kernel (top-k and samples).
at::ScalarType bias_type(const LinearHeadInputs& inputs, const LossOptions& options);

// Whether ignored rows are left out, so that hidden rows are gathered chunk by chunk.
bool gathers_rows(const LinearHeadInputs& inputs);

} // namespace distill::losses
