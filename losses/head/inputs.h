#pragma once

#include <ATen/core/Tensor.h>

#include "losses/head/columns.h"
#include "losses/options.h"
#include "losses/teacher_kind.h"

// The loss head's inputs and gradient buffers, their checks, and the dtypes that follow from them.
// Shapes: N tokens, V vocabulary rows, H student hidden size, G teacher hidden size, K entries of top-k, S samples.
namespace distill::losses {

// All tensors are on one device: CPU, CUDA, or meta to only allocate (losses/meta_device.h). No tensor is changed.
struct LinearHeadInputs {
  at::Tensor hidden_NH; // fp32, bf16 or fp64
  at::Tensor weight_VH; // the same dtype
  at::Tensor bias_V; // undefined: none; the same dtype; may exclude columns (losses/excluding_bias.h)
  at::Tensor
      teacher_hidden_NG; // undefined: no teacher, or one of the two below; fp32 or bf16 (fp64 with an fp64 student)
  at::Tensor teacher_weight_VG; // teacher_hidden's dtype; may have another number of rows than weight_VH
  at::Tensor teacher_bias_V; // undefined: none; teacher_hidden's dtype
  // These replace teacher_hidden where the teacher is top-k (TeacherKind::kTopK): its k most probable tokens, at most
  // kMaxEntries, and the probability of all others. The head normalises them. Rows of ignored tokens are not read.
  at::Tensor topk_ids_NK; // int32, distinct in a row; -1: no entry
  at::Tensor topk_log_probs_NK; // nats; fp32, bf16, fp16 or fp64
  at::Tensor tail_N; // fp32 or fp64; what rounding left below 0 counts as 0
  // These replace teacher_hidden where the teacher is samples (TeacherKind::kSampled): draws whose weights make
  // sum_s w_s f(id_s) an estimate of sum_v p_v f(v), at most kMaxEntries a token. A repeated id counts repeatedly.
  at::Tensor sample_ids_NS; // int32; -1: no draw
  at::Tensor sample_weights_NS; // fp32, bf16, fp16 or fp64
  double teacher_temperature = 1.0; // the temperature of the top-k or samples, which must be the loss's
  at::Tensor targets_N; // int64, kIgnoreIndex: no loss; undefined: every token counts and there is no hard loss
  at::Tensor token_weights_N; // fp32 (fp64 for fp64 inputs), undefined: 1
  int64_t vocab_size = 0; // columns that exist on both sides; the rest have probability 0. 0: min of both V
  // The rows of both lm_heads that are the columns, where they are not the first vocab_size ones (which is then 0).
  // Targets and ids of a teacher are ids of rows; each must have a column.
  ColumnRanges columns;
  int64_t valid_tokens = -1; // how many targets are not kIgnoreIndex, where known: only those are computed. A
                             // wrong count is an error (on CUDA a device-side assertion: the host is never asked)
  c10::DeviceType meta_device = c10::DeviceType::CUDA; // for meta tensors: the device type whose allocations are made,
                                                       // CPU or CUDA; not read otherwise
};

// The gradients are those of grad_scale * sum of metrics_MN[kLoss].
struct LinearHeadGrads {
  at::Tensor hidden_NH; // written (not accumulated); hidden's dtype; zero at ignored tokens; undefined: not computed
  at::Tensor weight_VH; // fp32 (fp64 for fp64 inputs), accumulated into; undefined: frozen lm_head
  at::Tensor bias_V; // likewise; undefined: none
  double grad_scale = 1.0; // usually 1 / (valid tokens of the whole batch over all ranks)
  bool accumulate = true; // false: weight_VH and bias_V are written and need not be zero before, which saves a pass
};

// Throws c10::Error naming the tensor, what was expected and what was found.
void check_linear_head(const LinearHeadInputs& inputs, const LossOptions& options, const LinearHeadGrads* grads);

// Returns which kind of teacher the inputs give.
TeacherKind teacher_kind(const LinearHeadInputs& inputs);

// Returns the rows that are columns on both sides, and their number.
ColumnRanges effective_columns(const LinearHeadInputs& inputs);
int64_t effective_vocab(const LinearHeadInputs& inputs);

// Returns fp32 (fp64 for fp64 inputs), unless bf16 is asked for and both sides are bf16.
at::ScalarType logits_type(const LinearHeadInputs& inputs, const LossOptions& options);

// Returns the one type in which biases are read: their own, or fp32 where they differ. With top-k and samples it is
// that of the logits, to which the bias is added before the row kernel.
at::ScalarType bias_type(const LinearHeadInputs& inputs, const LossOptions& options);

// Returns whether ignored rows are left out, so that hidden rows are gathered chunk by chunk.
bool gathers_rows(const LinearHeadInputs& inputs);

} // namespace distill::losses
