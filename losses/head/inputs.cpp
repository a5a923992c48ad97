#include "losses/head/inputs.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "losses/checks.h"
#include "losses/rows/sparse_args.h"

namespace distill::losses {

namespace {

struct Expected {
  at::IntArrayRef sizes;
  at::ScalarType dtype;
  at::Device device;
};

void check_tensor(const at::Tensor& tensor, const char* name, const Expected& expected) {
  TORCH_CHECK(tensor.defined(), name, ": expected a tensor of shape ", expected.sizes, ", found none");
  TORCH_CHECK(tensor.sizes() == expected.sizes, name, ": expected shape ", expected.sizes, ", found ", tensor.sizes());
  TORCH_CHECK(
      tensor.scalar_type() == expected.dtype, name, ": expected ", expected.dtype, ", found ", tensor.scalar_type());
  TORCH_CHECK(
      tensor.device() == expected.device, name, ": expected on ", expected.device, ", found on ", tensor.device());
}

void check_optional(const at::Tensor& tensor, const char* name, const Expected& expected) {
  if (tensor.defined()) {
    check_tensor(tensor, name, expected);
  }
}

// The teacher's head has its own width and dtype; only fp64 must be the same on both sides, since one kernel reads the
// logits of both.
void check_teacher(const LinearHeadInputs& in) {
  if (!in.teacher_hidden_NG.defined()) {
    TORCH_CHECK(
        !in.teacher_weight_VG.defined() && !in.teacher_bias_V.defined(),
        "teacher_weight_VG or teacher_bias_V is given without teacher_hidden_NG");
    return;
  }
  TORCH_CHECK(
      in.teacher_hidden_NG.dim() == 2, "teacher_hidden_NG: expected 2 dimensions, found ", in.teacher_hidden_NG.dim());
  TORCH_CHECK(in.teacher_weight_VG.defined(), "teacher_weight_VG: expected a tensor, found none");
  TORCH_CHECK(
      in.teacher_weight_VG.dim() == 2, "teacher_weight_VG: expected 2 dimensions, found ", in.teacher_weight_VG.dim());
  const int64_t tokens = in.hidden_NH.size(0);
  const int64_t width = in.teacher_hidden_NG.size(1);
  const int64_t vocab = in.teacher_weight_VG.size(0);
  const at::ScalarType student = in.hidden_NH.scalar_type();
  const at::ScalarType dtype = in.teacher_hidden_NG.scalar_type();
  const at::Device device = in.hidden_NH.device();
  TORCH_CHECK(
      student == at::kDouble ? dtype == at::kDouble : dtype == at::kFloat || dtype == at::kBFloat16,
      "teacher_hidden_NG: expected ", student == at::kDouble ? "fp64" : "fp32 or bf16", " beside a student of ",
      student, ", found ", dtype);
  check_tensor(in.teacher_hidden_NG, "teacher_hidden_NG", {{tokens, width}, dtype, device});
  check_tensor(in.teacher_weight_VG, "teacher_weight_VG", {{vocab, width}, dtype, device});
  check_optional(in.teacher_bias_V, "teacher_bias_V", {{vocab}, dtype, device});
}

void check_entries(
    const LinearHeadInputs& in, const at::Tensor& ids, const char* ids_name, const at::Tensor& values,
    const char* values_name) {
  const int64_t tokens = in.hidden_NH.size(0);
  const at::Device device = in.hidden_NH.device();
  TORCH_CHECK(ids.dim() == 2, ids_name, ": expected 2 dimensions, found ", ids.dim());
  const int64_t entries = ids.size(1);
  TORCH_CHECK(
      entries >= 1 && entries <= kMaxEntries, ids_name, ": expected 1 to ", kMaxEntries, " columns, found ", entries);
  check_tensor(ids, ids_name, {{tokens, entries}, at::kInt, device});
  TORCH_CHECK(values.defined(), values_name, ": expected a tensor of shape ", ids.sizes(), ", found none");
  const at::ScalarType type = values.scalar_type();
  TORCH_CHECK(
      type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble, values_name,
      ": expected fp32, bf16, fp16 or fp64, found ", type);
  check_tensor(values, values_name, {{tokens, entries}, type, device});
  TORCH_CHECK(
      entries == 1 || (ids.stride(1) == 1 && values.stride(1) == 1), ids_name, " and ", values_name,
      ": expected contiguous columns, found strides ", ids.strides(), " and ", values.strides());
}

// Checks that there is at most one teacher, and that it is complete.
void check_cached_teacher(const LinearHeadInputs& in) {
  const bool topk = in.topk_ids_NK.defined();
  const bool sampled = in.sample_ids_NS.defined();
  TORCH_CHECK(
      static_cast<int>(in.teacher_hidden_NG.defined()) + static_cast<int>(topk) + static_cast<int>(sampled) <= 1,
      "expected one of teacher_hidden_NG, topk_ids_NK and sample_ids_NS, found more");
  TORCH_CHECK(
      topk || (!in.topk_log_probs_NK.defined() && !in.tail_N.defined()),
      "topk_log_probs_NK or tail_N is given without topk_ids_NK");
  TORCH_CHECK(sampled || !in.sample_weights_NS.defined(), "sample_weights_NS is given without sample_ids_NS");
  if (topk) {
    check_entries(in, in.topk_ids_NK, "topk_ids_NK", in.topk_log_probs_NK, "topk_log_probs_NK");
    TORCH_CHECK(in.tail_N.defined(), "tail_N: expected the probability of the other tokens, found none");
    const at::ScalarType type = in.tail_N.scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kDouble, "tail_N: expected fp32 or fp64, found ", type);
    check_tensor(in.tail_N, "tail_N", {{in.hidden_NH.size(0)}, type, in.hidden_NH.device()});
  }
  if (sampled) {
    check_entries(in, in.sample_ids_NS, "sample_ids_NS", in.sample_weights_NS, "sample_weights_NS");
  }
}

void check_grads(const LinearHeadInputs& in, const LinearHeadGrads& grads, at::ScalarType compute) {
  TORCH_CHECK(std::isfinite(grads.grad_scale), "grads.grad_scale: expected a finite number, found ", grads.grad_scale);
  TORCH_CHECK(
      grads.hidden_NH.defined() || grads.weight_VH.defined() || grads.bias_V.defined(),
      "grads: expected a tensor for hidden_NH, weight_VH or bias_V, found none");
  check_optional(
      grads.hidden_NH, "grads.hidden_NH", {in.hidden_NH.sizes(), in.hidden_NH.scalar_type(), in.hidden_NH.device()});
  check_optional(grads.weight_VH, "grads.weight_VH", {in.weight_VH.sizes(), compute, in.hidden_NH.device()});
  if (grads.bias_V.defined()) {
    TORCH_CHECK(in.bias_V.defined(), "grads.bias_V is given without bias_V");
    check_tensor(grads.bias_V, "grads.bias_V", {in.bias_V.sizes(), compute, in.hidden_NH.device()});
  }
}

} // namespace

at::ScalarType logits_type(const LinearHeadInputs& in, const LossOptions& options) {
  const at::ScalarType student = in.hidden_NH.scalar_type();
  const at::ScalarType teacher = in.teacher_hidden_NG.defined() ? in.teacher_hidden_NG.scalar_type() : student;
  const bool rounds =
      options.logits_dtype == LogitsDtype::kBFloat16 && student == at::kBFloat16 && teacher == at::kBFloat16;
  return rounds ? at::kBFloat16 : compute_type(student);
}

TeacherKind teacher_kind(const LinearHeadInputs& in) {
  if (in.teacher_hidden_NG.defined()) {
    return TeacherKind::kHidden;
  }
  if (in.topk_ids_NK.defined()) {
    return TeacherKind::kTopK;
  }
  return in.sample_ids_NS.defined() ? TeacherKind::kSampled : TeacherKind::kNone;
}

at::ScalarType bias_type(const LinearHeadInputs& in, const LossOptions& options) {
  if (is_sparse(teacher_kind(in))) {
    return logits_type(in, options);
  }
  if (!in.bias_V.defined() && !in.teacher_bias_V.defined()) {
    return at::kFloat;
  }
  if (!in.bias_V.defined() || !in.teacher_bias_V.defined()) {
    return (in.bias_V.defined() ? in.bias_V : in.teacher_bias_V).scalar_type();
  }
  return in.bias_V.scalar_type() == in.teacher_bias_V.scalar_type() ? in.bias_V.scalar_type() : at::kFloat;
}

bool gathers_rows(const LinearHeadInputs& in) {
  return in.valid_tokens >= 0 && in.valid_tokens < in.hidden_NH.size(0);
}

ColumnRanges effective_columns(const LinearHeadInputs& in) {
  if (!in.columns.empty()) {
    return in.columns;
  }
  if (in.vocab_size > 0) {
    return {{0, in.vocab_size}};
  }
  const int64_t student = in.weight_VH.size(0);
  return {{0, in.teacher_hidden_NG.defined() ? std::min(student, in.teacher_weight_VG.size(0)) : student}};
}

int64_t effective_vocab(const LinearHeadInputs& in) {
  return count_columns(effective_columns(in));
}

void check_linear_head(const LinearHeadInputs& in, const LossOptions& options, const LinearHeadGrads* grads) {
  const absl::Status status = validate(options);
  TORCH_CHECK(status.ok(), "loss options: ", std::string(status.message()));
  TORCH_CHECK(in.hidden_NH.defined() && in.hidden_NH.dim() == 2, "hidden_NH: expected a tensor of 2 dimensions");
  TORCH_CHECK(in.weight_VH.defined() && in.weight_VH.dim() == 2, "weight_VH: expected a tensor of 2 dimensions");
  const at::ScalarType dtype = in.hidden_NH.scalar_type();
  TORCH_CHECK(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble,
      "hidden_NH: expected fp32, bf16 or fp64, found ", dtype);
  const at::Device device = in.hidden_NH.device();
  const int64_t tokens = in.hidden_NH.size(0);
  const int64_t vocab = in.weight_VH.size(0);
  const at::ScalarType compute = compute_type(dtype);
  check_tensor(in.weight_VH, "weight_VH", {{vocab, in.hidden_NH.size(1)}, dtype, device});
  check_optional(in.bias_V, "bias_V", {{vocab}, dtype, device});
  check_optional(in.targets_N, "targets_N", {{tokens}, at::kLong, device});
  check_optional(in.token_weights_N, "token_weights_N", {{tokens}, compute, device});
  check_teacher(in);
  check_cached_teacher(in);

  const TeacherKind kind = teacher_kind(in);
  const absl::Status possible = validate_for_teacher(options, kind, in.teacher_temperature);
  TORCH_CHECK(possible.ok(), std::string(possible.message()));
  TORCH_CHECK(
      kind != TeacherKind::kNone || options.divergence == Divergence::kNone || options.soft_weight == 0,
      "the loss has a soft term (soft_weight ", options.soft_weight,
      ") but no teacher_hidden_NG is given, nor top-k or samples");
  TORCH_CHECK(
      in.targets_N.defined() || options.hard_weight == 0, "the loss has a hard term (hard_weight ", options.hard_weight,
      ") but no targets_N is given");
  const int64_t widest = kind == TeacherKind::kHidden ? std::min(vocab, in.teacher_weight_VG.size(0)) : vocab;
  TORCH_CHECK(in.vocab_size >= 0, "vocab_size: expected at least 0 (all rows), found ", in.vocab_size);
  TORCH_CHECK(
      in.vocab_size <= widest, "vocab_size: expected at most the rows of both lm_heads, ", widest, ", found ",
      in.vocab_size);
  TORCH_CHECK(in.columns.empty() || in.vocab_size == 0, "columns and vocab_size are both given");
  TORCH_CHECK(
      are_columns(in.columns, widest), "columns: expected ascending ranges of the rows of both lm_heads, ", widest,
      ", found ", in.columns.size(), " ranges, the last up to ", in.columns.empty() ? 0 : in.columns.back().end);
  TORCH_CHECK(effective_vocab(in) > 0, "weight_VH: expected at least one vocabulary row");
  TORCH_CHECK(
      in.valid_tokens >= -1 && in.valid_tokens <= tokens, "valid_tokens: expected at most ", tokens,
      " tokens (-1: not known), found ", in.valid_tokens);
  TORCH_CHECK(
      in.valid_tokens < 0 || in.targets_N.defined() || in.valid_tokens == tokens,
      "valid_tokens: without targets_N every one of the ", tokens, " tokens is valid, found ", in.valid_tokens);
  if (grads != nullptr) {
    check_grads(in, *grads, compute);
  }
}

} // namespace distill::losses
