#include "losses/head/linear_head.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "losses/checks.h"
#include "losses/head/head_scratch.h"
#include "losses/head/products.h"
#include "losses/meta_device.h"
#include "losses/rows/sparse_dispatch.h"

namespace distill::losses {

namespace {

// A HeadRun is one call: the computed tokens, the buffers, and the results. A group of chunks gathers its gradients.
class HeadRun {
 public:
  HeadRun(
      const LinearHeadInputs& in, const LossOptions& options, LinearHeadGrads* grads, const ChunkPlan& plan,
      const at::Tensor& arena);
  at::Tensor run();

 private:
  void cut_chunk(int64_t count, int64_t offset);
  void logits_and_rows(int64_t begin, int64_t count, int64_t offset);
  SparseTensors sparse_teacher(int64_t begin, int64_t count) const;
  void backward(int64_t begin, int64_t count);
  void zero_unwritten_gradients();
  int64_t next_group(int64_t begin) const;
  void logits(const at::Tensor& logits_RV, const at::Tensor& hidden, const at::Tensor& weight_VH) const;
  at::Tensor tokens_of(const at::Tensor& source, int64_t begin, int64_t count, const at::Tensor& gathered) const;

  const LinearHeadInputs& in_;
  const LossOptions& options_;
  LinearHeadGrads* grads_;
  ChunkPlan plan_;
  c10::DeviceType kernels_; // the device type whose kernels run (losses/meta_device.h)
  ColumnRanges columns_; // the rows of both lm_heads that are columns
  std::vector<ProductPart> parts_; // of the columns
  int64_t vocab_; // the number of columns
  int64_t num_tokens_; // computed tokens: all, or those that are not ignored
  at::Tensor index_; // positions of the computed tokens; undefined: all tokens are computed
  at::Tensor targets_; // of the computed tokens, contiguous
  at::Tensor token_weights_;
  at::Tensor tail_; // of all tokens, contiguous
  at::Tensor ids_NK_; // columns of a top-k or sampled teacher, of all tokens
  at::Tensor hidden_NH_;
  at::Tensor weight_VH_; // all rows
  at::Tensor teacher_hidden_NG_;
  at::Tensor teacher_weight_VG_;
  at::Tensor student_bias_;
  at::Tensor teacher_bias_;
  Scratch scratch_;
  // These tensors belong to a group.
  at::Tensor gradient_;
  at::Tensor hidden_; // gathered hidden states; undefined where every token is computed
  at::Tensor hidden_gradient_; // likewise
  at::Tensor bias_gradient_;
  // These tensors belong to a chunk.
  at::Tensor student_logits_; // undefined where the gradient is written over them
  at::Tensor teacher_logits_;
  at::Tensor teacher_hidden_; // gathered
  at::Tensor entry_logits_; // the student's, where the teacher is top-k or samples
  // These tensors belong to the call.
  at::Tensor saved_; // [kNumSavedValues, computed tokens], where the teacher is top-k or samples
  at::Tensor metrics_; // [kNumTokenMetrics, computed tokens]
};

at::Tensor contiguous_or_undefined(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : at::Tensor();
}

at::Tensor tokens_or_undefined(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, begin, count) : at::Tensor();
}

HeadRun::HeadRun(
    const LinearHeadInputs& in, const LossOptions& options, LinearHeadGrads* grads, const ChunkPlan& plan,
    const at::Tensor& arena)
    : in_(in),
      options_(options),
      grads_(grads),
      plan_(plan),
      kernels_(kernel_device(in.hidden_NH, in.meta_device)),
      columns_(effective_columns(in)),
      parts_(product_parts(columns_)),
      vocab_(count_columns(columns_)),
      num_tokens_(in.hidden_NH.size(0)),
      scratch_(arena.narrow(0, 0, plan.arena_bytes)) {
  targets_ = contiguous_or_undefined(in.targets_N);
  token_weights_ = contiguous_or_undefined(in.token_weights_N);
  tail_ = contiguous_or_undefined(in.tail_N);
  hidden_NH_ = readable_by_products(in.hidden_NH);
  weight_VH_ = readable_by_products(in.weight_VH);
  const at::ScalarType dtype = in.hidden_NH.scalar_type();
  if (in.teacher_hidden_NG.defined()) {
    teacher_hidden_NG_ = readable_by_products(in.teacher_hidden_NG);
    teacher_weight_VG_ = readable_by_products(in.teacher_weight_VG);
  }
  const auto bias = [&](const at::Tensor& whole) {
    const at::Tensor tensor = take_columns(whole, columns_);
    if (!tensor.defined() || tensor.scalar_type() == bias_type(in, options)) {
      return contiguous_or_undefined(tensor);
    }
    return scratch_.matrix(1, vocab_, bias_type(in, options)).squeeze(0).copy_(tensor);
  };
  student_bias_ = bias(in.bias_V);
  teacher_bias_ = bias(in.teacher_bias_V);
  if (grads != nullptr && grads->bias_V.defined()) {
    bias_gradient_ = scratch_.matrix(1, vocab_, grads->bias_V.scalar_type()).squeeze(0);
  }
  if (in.valid_tokens >= 0 && in.targets_N.defined()) {
    const at::Tensor valid = targets_.ne(kIgnoreIndex);
    assert_async(
        count_true(valid, kernels_).eq(in.valid_tokens),
        "linear_head: valid_tokens is not the number of targets that are not ignored");
    num_tokens_ = in.valid_tokens;
    if (gathers_rows(in)) {
      index_ = true_positions(valid, num_tokens_, kernels_);
      targets_ = gather_rows(targets_, index_);
      token_weights_ = token_weights_.defined() ? gather_rows(token_weights_, index_) : token_weights_;
      hidden_ = scratch_.matrix(plan.gradient_rows, in.hidden_NH.size(1), dtype);
      if (grads != nullptr) {
        hidden_gradient_ = scratch_.matrix(plan.gradient_rows, in.hidden_NH.size(1), dtype);
      }
    }
  }
  if (columns_ != ColumnRanges{{0, vocab_}}) {
    targets_ = targets_.defined() ? columns_of_ids(targets_, columns_) : targets_;
  }
  if (grads != nullptr) {
    gradient_ = scratch_.matrix(plan.gradient_rows, vocab_, dtype); // the last one: see cut_chunk()
  }
  const at::TensorOptions numbers = in.hidden_NH.options().dtype(compute_type(dtype));
  metrics_ = at::empty({kNumTokenMetrics, num_tokens_}, numbers);
  if (is_sparse(teacher_kind(in))) {
    ids_NK_ = in.topk_ids_NK.defined() ? in.topk_ids_NK : in.sample_ids_NS;
    ids_NK_ = columns_ == ColumnRanges{{0, vocab_}} ? ids_NK_ : columns_of_ids(ids_NK_, columns_);
    saved_ = at::empty({kNumSavedValues, num_tokens_}, numbers);
  }
}

// Returns the hidden states of the computed tokens [begin, begin + count). Where ignored tokens are left out, they are
// gathered into `gathered`.
at::Tensor HeadRun::tokens_of(
    const at::Tensor& source, int64_t begin, int64_t count, const at::Tensor& gathered) const {
  if (!index_.defined()) {
    return source.narrow(0, begin, count);
  }
  at::Tensor destination = gathered.narrow(0, 0, count);
  gather_rows_out(destination, source, index_.narrow(0, begin, count));
  return destination;
}

// Cuts the buffers of a chunk of `count` tokens from the back of the arena. In front of them lie the gradients of the
// group's `offset` tokens before, and the chunk's own.
void HeadRun::cut_chunk(int64_t count, int64_t offset) {
  const at::ScalarType dtype = in_.hidden_NH.scalar_type();
  const at::ScalarType logits = logits_type(in_, options_);
  scratch_.begin_chunk(/*unused=*/grads_ != nullptr ? plan_.gradient_rows - offset - count : 0);
  if (grads_ == nullptr || logits != dtype) {
    student_logits_ = scratch_.chunk_matrix(count, vocab_, logits);
  }
  if (in_.teacher_hidden_NG.defined()) {
    teacher_logits_ = scratch_.chunk_matrix(count, vocab_, logits);
    if (index_.defined()) {
      teacher_hidden_ =
          scratch_.chunk_matrix(count, in_.teacher_hidden_NG.size(1), in_.teacher_hidden_NG.scalar_type());
    }
  }
  if (is_sparse(teacher_kind(in_))) {
    entry_logits_ = scratch_.chunk_matrix(count, ids_NK_.size(1), compute_type(dtype));
  }
}

// Computes the logits of the columns.
void HeadRun::logits(const at::Tensor& logits_RV, const at::Tensor& hidden, const at::Tensor& weight_VH) const {
  for (const ProductPart& part : parts_) {
    logits_product(
        kernels_, logits_RV.narrow(1, part.column, part.size()), hidden,
        weight_VH.narrow(0, part.rows.begin, part.size()));
  }
}

// Computes the student's and the teacher's logits of tokens [begin, begin + count), and runs the row kernel on them.
// `offset` is the place of these tokens in the gradient buffer.
void HeadRun::logits_and_rows(int64_t begin, int64_t count, int64_t offset) {
  cut_chunk(count, offset);
  const at::Tensor hidden =
      tokens_of(hidden_NH_, begin, count, index_.defined() ? hidden_.narrow(0, offset, count) : at::Tensor());
  RowTensors rows;
  rows.gradient_RV = tokens_or_undefined(gradient_, offset, count);
  rows.student_RV = student_logits_.defined() ? student_logits_ : rows.gradient_RV;
  rows.student_bias_V = student_bias_;
  logits(rows.student_RV, hidden, weight_VH_);
  if (teacher_logits_.defined()) {
    const at::Tensor teacher_hidden = tokens_of(teacher_hidden_NG_, begin, count, teacher_hidden_);
    rows.teacher_RV = teacher_logits_;
    rows.teacher_bias_V = teacher_bias_;
    logits(rows.teacher_RV, teacher_hidden, teacher_weight_VG_);
  }
  rows.targets_R = tokens_or_undefined(targets_, begin, count);
  rows.token_weights_R = tokens_or_undefined(token_weights_, begin, count);
  rows.metrics_MR = metrics_.narrow(1, begin, count);
  if (entry_logits_.defined()) {
    rows.saved_SR = saved_.narrow(1, begin, count);
    run_sparse_rows(rows, sparse_teacher(begin, count), options_, kernels_);
  } else {
    run_rows(rows, options_, kernels_);
  }
}

// Returns the top-k or samples of the computed tokens [begin, begin + count), without a copy.
SparseTensors HeadRun::sparse_teacher(int64_t begin, int64_t count) const {
  const bool topk = in_.topk_ids_NK.defined();
  SparseTensors teacher;
  teacher.ids_NK = ids_NK_;
  teacher.values_NK = topk ? in_.topk_log_probs_NK : in_.sample_weights_NS;
  teacher.tail_N = tail_;
  if (index_.defined()) {
    teacher.index_R = index_.narrow(0, begin, count);
  } else {
    teacher.ids_NK = teacher.ids_NK.narrow(0, begin, count);
    teacher.values_NK = teacher.values_NK.narrow(0, begin, count);
    teacher.tail_N = tokens_or_undefined(tail_, begin, count);
  }
  teacher.entry_logits_RK = entry_logits_;
  return teacher;
}

void HeadRun::backward(int64_t begin, int64_t count) {
  const bool gathers = index_.defined();
  const at::Tensor gradient = gradient_.narrow(0, 0, count);
  const at::Tensor hidden = gathers ? hidden_.narrow(0, 0, count) : hidden_NH_.narrow(0, begin, count);
  if (grads_->hidden_NH.defined()) {
    at::Tensor hidden_gradient =
        gathers ? hidden_gradient_.narrow(0, 0, count) : grads_->hidden_NH.narrow(0, begin, count);
    for (const ProductPart& part : parts_) {
      hidden_gradient_product(
          kernels_, hidden_gradient, gradient.narrow(1, part.column, part.size()),
          weight_VH_.narrow(0, part.rows.begin, part.size()), grads_->grad_scale,
          /*accumulates=*/&part != &parts_.front());
    }
    if (gathers) {
      grads_->hidden_NH.index_copy_(0, index_.narrow(0, begin, count), hidden_gradient);
    }
  }
  const bool accumulates = grads_->accumulate || begin > 0;
  if (grads_->weight_VH.defined()) {
    for (const ProductPart& part : parts_) {
      weight_gradient_product(
          kernels_, grads_->weight_VH.narrow(0, part.rows.begin, part.size()),
          gradient.narrow(1, part.column, part.size()), hidden, grads_->grad_scale, accumulates);
    }
  }
  if (grads_->bias_V.defined()) {
    bias_gradient_sum(kernels_, bias_gradient_, gradient);
    int64_t first = 0;
    for (const auto& [from, to] : columns_) {
      at::Tensor bias = grads_->bias_V.narrow(0, from, to - from);
      const at::Tensor sum = bias_gradient_.narrow(0, first, to - from);
      if (accumulates) {
        bias.add_(sum, grads_->grad_scale);
      } else {
        bias.copy_(sum).mul_(grads_->grad_scale);
      }
      first += to - from;
    }
  }
}

// Zeroes the parts of the gradients that no product writes: hidden states of tokens that are left out, and, where the
// weight gradient is written and not accumulated, the rows that are no columns (all of them where there is no token).
void HeadRun::zero_unwritten_gradients() {
  if (grads_->hidden_NH.defined() && (index_.defined() || num_tokens_ == 0)) {
    grads_->hidden_NH.zero_();
  }
  if (grads_->accumulate) {
    return;
  }
  const ColumnRanges written = num_tokens_ > 0 ? columns_ : ColumnRanges();
  for (const at::Tensor& gradient : {grads_->weight_VH, grads_->bias_V}) {
    if (!gradient.defined()) {
      continue;
    }
    int64_t last = 0;
    for (const auto& [begin, end] : written) {
      gradient.narrow(0, last, begin - last).zero_();
      last = end;
    }
    gradient.narrow(0, last, gradient.size(0) - last).zero_();
  }
}

// Returns the first token of the group after the one that begins at `begin`. All full groups make the same allocations,
// so that a run on meta tensors goes from the sixteenth to the last one.
int64_t HeadRun::next_group(int64_t begin) const {
  constexpr int64_t kMetaGroups = 16;
  const int64_t next = begin + plan_.gradient_rows;
  if (!in_.hidden_NH.is_meta() || next < kMetaGroups * plan_.gradient_rows) {
    return next;
  }
  const int64_t last = (num_tokens_ - 1) / plan_.gradient_rows * plan_.gradient_rows;
  return std::max(next, last);
}

at::Tensor HeadRun::run() {
  if (targets_.defined()) {
    assert_labels(targets_, vocab_);
  }
  if (grads_ != nullptr) {
    zero_unwritten_gradients();
  }
  for (int64_t begin = 0; begin < num_tokens_; begin = next_group(begin)) {
    const int64_t count = std::min(plan_.gradient_rows, num_tokens_ - begin);
    int64_t offset = 0;
    for (size_t k = 0; offset < count; ++k) {
      const int64_t rows = std::min(plan_.logits_rows[k], count - offset);
      logits_and_rows(begin + offset, rows, offset);
      offset += rows;
    }
    if (grads_ != nullptr) {
      backward(begin, count);
    }
  }
  if (num_tokens_ == in_.hidden_NH.size(0)) {
    return metrics_;
  }
  at::Tensor metrics_MN = at::zeros({kNumTokenMetrics, in_.hidden_NH.size(0)}, metrics_.options());
  return index_.defined() ? metrics_MN.index_copy_(1, index_, metrics_) : metrics_MN;
}

} // namespace

absl::StatusOr<ChunkPlan> linear_head_plan(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, bool needs_grad) {
  const c10::DeviceType kernels = kernel_device(inputs.hidden_NH, inputs.meta_device);
  return resolve_chunks(chunks, head_shape(inputs, options, needs_grad, kernels));
}

LinearHeadOutput linear_head(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, LinearHeadGrads* grads,
    const at::Tensor& arena) {
  const c10::NoGradGuard no_grad;
  check_linear_head(inputs, options, grads);
  const c10::DeviceGuard device(inputs.hidden_NH.device());
  const absl::StatusOr<ChunkPlan> plan = linear_head_plan(inputs, options, chunks, grads != nullptr);
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  at::Tensor scratch = arena;
  if (arena.defined()) {
    TORCH_CHECK(
        arena.scalar_type() == at::kByte && arena.is_contiguous() && arena.device() == inputs.hidden_NH.device(),
        "arena: expected a contiguous uint8 tensor on ", inputs.hidden_NH.device());
    TORCH_CHECK(
        arena.numel() >= plan->arena_bytes, "arena: expected at least ", plan->arena_bytes, " bytes, found ",
        arena.numel());
  } else {
    scratch = at::empty({plan->arena_bytes}, inputs.hidden_NH.options().dtype(at::kByte));
  }
  return {HeadRun(inputs, options, grads, *plan, scratch).run()};
}

} // namespace distill::losses
