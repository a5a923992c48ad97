#include "losses/head/head_scratch.h"

#include <ATen/Parallel.h>

#include <utility>

#include "losses/checks.h"
#include "losses/head/products.h"
#include "losses/rows/cpu/row_kernel.h"
#include "losses/rows/dispatch.h"

namespace distill::losses {

namespace {

int64_t size_of(at::ScalarType type) {
  return static_cast<int64_t>(c10::elementSize(type));
}

// Returns the bytes of the biases that are converted to the row kernel's type, and of the bias gradient of a chunk.
int64_t bias_bytes(const LinearHeadInputs& in, const LossOptions& options, int64_t vocab, bool needs_grad) {
  int64_t bytes = 0;
  for (const at::Tensor& bias : {in.bias_V, in.teacher_bias_V}) {
    if (bias.defined() && bias.scalar_type() != bias_type(in, options)) {
      bytes += row_bytes(vocab, size_of(bias_type(in, options)));
    }
  }
  if (needs_grad && in.bias_V.defined()) {
    bytes += row_bytes(vocab, size_of(compute_type(in.hidden_NH.scalar_type())));
  }
  return bytes;
}

} // namespace

HeadShape head_shape(const LinearHeadInputs& in, const LossOptions& options, bool needs_grad, c10::DeviceType device) {
  const at::ScalarType dtype = in.hidden_NH.scalar_type();
  const at::ScalarType logits = logits_type(in, options);
  HeadShape shape{
      .tokens = in.hidden_NH.size(0),
      .ignored_tokens = gathers_rows(in) ? in.hidden_NH.size(0) - in.valid_tokens : 0,
      .vocab = effective_vocab(in),
      .student_hidden = in.hidden_NH.size(1),
      .logits_bytes = size_of(logits),
      .gradient_bytes = size_of(dtype),
      .hidden_bytes = size_of(dtype),
      .needs_grad = needs_grad,
      .gathers_rows = gathers_rows(in)};
  ConversionBytes conversion = conversion_bytes(device, dtype, shape.student_hidden);
  if (in.teacher_hidden_NG.defined()) {
    const at::ScalarType teacher_dtype = in.teacher_hidden_NG.scalar_type();
    shape.teacher_hidden = in.teacher_hidden_NG.size(1);
    shape.teacher_hidden_bytes = size_of(teacher_dtype);
    const ConversionBytes teacher = conversion_bytes(device, teacher_dtype, shape.teacher_hidden);
    conversion.fixed = std::max(conversion.fixed, teacher.fixed);
    conversion.per_row = std::max(conversion.per_row, teacher.per_row);
  }
  if (is_sparse(teacher_kind(in))) {
    shape.teacher_entries = (in.topk_ids_NK.defined() ? in.topk_ids_NK : in.sample_ids_NS).size(1);
    shape.entry_bytes = size_of(compute_type(dtype));
  }
  shape.fixed_arena_bytes = bias_bytes(in, options, shape.vocab, needs_grad);
  shape.fixed_bytes = conversion.fixed;
  shape.extra_bytes_per_row = conversion.per_row;
  if (device == at::kCPU) {
    shape.row_threads = at::get_num_threads();
    shape.row_thread_bytes = rows_cpu_thread_bytes(shape.vocab, element_type(logits));
  }
  return shape;
}

at::Tensor Scratch::matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  last_row_ = row_bytes(columns, size_of(type));
  const int64_t begin = std::exchange(used_, used_ + rows * last_row_);
  return cut(begin, rows, columns, type);
}

void Scratch::begin_chunk(int64_t unused) {
  in_use_ = used_ - unused * last_row_;
  back_ = arena_.numel();
}

at::Tensor Scratch::chunk_matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  back_ -= rows * row_bytes(columns, size_of(type));
  TORCH_INTERNAL_ASSERT(back_ >= in_use_, "the arena is too small for a chunk of ", rows, " tokens");
  return cut(back_, rows, columns, type);
}

at::Tensor Scratch::cut(int64_t begin, int64_t rows, int64_t columns, at::ScalarType type) const {
  const at::Tensor typed = arena_.view(type);
  const int64_t bytes = size_of(type);
  return typed.as_strided({rows, columns}, {padded_columns(columns, bytes), 1}, typed.storage_offset() + begin / bytes);
}

} // namespace distill::losses
