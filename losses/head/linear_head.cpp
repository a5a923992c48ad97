#include "losses/head/linear_head.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "losses/checks.h"
#include "losses/head/head_scratch.h"
#include "losses/head/products.h"
#include "losses/rows/dispatch.h"

namespace distill::losses {

namespace {

// What one call works on: the rows that count, their buffers, where results go.
class HeadRun {
 public:
  HeadRun(
      const LinearHeadInputs& in, const LossOptions& options, LinearHeadGrads* grads, const ChunkPlan& plan,
      at::Tensor arena);
  at::Tensor run();

 private:
  void logits_and_rows(int64_t begin, int64_t count, int64_t offset);
  void backward(int64_t begin, int64_t count);
  void zero_what_no_product_writes();
  at::Tensor rows_of(const at::Tensor& source, int64_t begin, int64_t count, const at::Tensor& gathered) const;

  const LinearHeadInputs& in_;
  const LossOptions& options_;
  LinearHeadGrads* grads_;
  ChunkPlan plan_;
  int64_t vocab_;
  int64_t num_rows_; // that are computed
  at::Tensor index_; // of those rows; undefined: all of them
  at::Tensor targets_; // of those rows, contiguous
  at::Tensor token_weights_;
  at::Tensor hidden_NH_;
  at::Tensor weight_VH_; // the vocab_ rows that exist on both sides
  at::Tensor teacher_hidden_NG_;
  at::Tensor teacher_weight_VG_;
  at::Tensor student_bias_;
  at::Tensor teacher_bias_;
  at::Tensor student_logits_;
  at::Tensor teacher_logits_;
  at::Tensor gradient_;
  at::Tensor hidden_; // gathered rows, undefined when every row is computed
  at::Tensor teacher_hidden_;
  at::Tensor hidden_gradient_;
  at::Tensor bias_gradient_; // of a chunk
  at::Tensor metrics_; // [kNumTokenMetrics, computed tokens]
};

at::Tensor contiguous_or_undefined(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : at::Tensor();
}

HeadRun::HeadRun(
    const LinearHeadInputs& in, const LossOptions& options, LinearHeadGrads* grads, const ChunkPlan& plan,
    at::Tensor arena)
    : in_(in),
      options_(options),
      grads_(grads),
      plan_(plan),
      vocab_(effective_vocab(in)),
      num_rows_(in.hidden_NH.size(0)) {
  targets_ = contiguous_or_undefined(in.targets_N);
  token_weights_ = contiguous_or_undefined(in.token_weights_N);
  hidden_NH_ = readable_by_products(in.hidden_NH);
  weight_VH_ = readable_by_products(in.weight_VH).narrow(0, 0, vocab_);
  const at::ScalarType dtype = in.hidden_NH.scalar_type();
  const bool has_teacher = in.teacher_hidden_NG.defined();
  if (has_teacher) {
    teacher_hidden_NG_ = readable_by_products(in.teacher_hidden_NG);
    teacher_weight_VG_ = readable_by_products(in.teacher_weight_VG).narrow(0, 0, vocab_);
  }
  Scratch scratch(std::move(arena));
  const auto bias = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.scalar_type() == bias_type(in)) {
      return contiguous_or_undefined(tensor);
    }
    return scratch.matrix(1, vocab_, bias_type(in)).squeeze(0).copy_(tensor.narrow(0, 0, vocab_));
  };
  student_bias_ = bias(in.bias_V);
  teacher_bias_ = bias(in.teacher_bias_V);
  if (grads != nullptr && grads->bias_V.defined()) {
    bias_gradient_ = scratch.matrix(1, vocab_, grads->bias_V.scalar_type()).squeeze(0);
  }
  const at::ScalarType logits = logits_type(in, options);
  student_logits_ = scratch.matrix(plan.logits_rows, vocab_, logits);
  if (has_teacher) {
    teacher_logits_ = scratch.matrix(plan.logits_rows, vocab_, logits);
  }
  if (grads != nullptr) {
    gradient_ = scratch.matrix(plan.gradient_rows, vocab_, dtype);
  }
  if (in.valid_tokens >= 0 && in.targets_N.defined()) {
    const at::Tensor valid = targets_.ne(kIgnoreIndex);
    at::_assert_async(
        valid.sum().eq(in.valid_tokens), "linear_head: valid_tokens is not the number of targets that are not ignored");
    num_rows_ = in.valid_tokens;
    if (gathers_rows(in)) {
      index_ = at::nonzero_static(valid, num_rows_, /*fill_value=*/0).squeeze(1);
      targets_ = targets_.index_select(0, index_);
      token_weights_ = token_weights_.defined() ? token_weights_.index_select(0, index_) : token_weights_;
      hidden_ = scratch.matrix(plan.gradient_rows, in.hidden_NH.size(1), dtype);
      if (grads != nullptr) {
        hidden_gradient_ = scratch.matrix(plan.gradient_rows, in.hidden_NH.size(1), dtype);
      }
      if (has_teacher) {
        teacher_hidden_ =
            scratch.matrix(plan.logits_rows, in.teacher_hidden_NG.size(1), in.teacher_hidden_NG.scalar_type());
      }
    }
  }
  metrics_ = at::empty({kNumTokenMetrics, num_rows_}, in.hidden_NH.options().dtype(compute_type(dtype)));
}

// Rows [begin, begin + count) of those that are computed; `gathered` receives them where rows are left out.
at::Tensor HeadRun::rows_of(const at::Tensor& source, int64_t begin, int64_t count, const at::Tensor& gathered) const {
  if (!index_.defined()) {
    return source.narrow(0, begin, count);
  }
  at::Tensor destination = gathered.narrow(0, 0, count);
  at::index_select_out(destination, source, 0, index_.narrow(0, begin, count));
  return destination;
}

// `offset`: where this chunk's rows stand in the gradient buffer.
void HeadRun::logits_and_rows(int64_t begin, int64_t count, int64_t offset) {
  const bool gathers = index_.defined();
  const at::Tensor student = student_logits_.narrow(0, 0, count);
  const at::Tensor hidden =
      rows_of(hidden_NH_, begin, count, gathers ? hidden_.narrow(0, offset, count) : at::Tensor());
  logits_product(student, hidden, weight_VH_);
  RowArgs args;
  args.student = student.data_ptr();
  args.student_stride = student.stride(0);
  args.logits_type = element_type(student.scalar_type());
  args.bias_type = element_type(bias_type(in_));
  args.student_bias = student_bias_.defined() ? student_bias_.data_ptr() : nullptr;
  if (teacher_logits_.defined()) {
    const at::Tensor teacher = teacher_logits_.narrow(0, 0, count);
    logits_product(teacher, rows_of(teacher_hidden_NG_, begin, count, teacher_hidden_), teacher_weight_VG_);
    args.teacher = teacher.data_ptr();
    args.teacher_stride = teacher.stride(0);
    args.teacher_bias = teacher_bias_.defined() ? teacher_bias_.data_ptr() : nullptr;
  }
  if (gradient_.defined()) {
    const at::Tensor gradient = gradient_.narrow(0, offset, count);
    args.gradient = gradient.data_ptr();
    args.gradient_stride = gradient.stride(0);
    args.gradient_type = element_type(gradient.scalar_type());
  }
  args.targets = targets_.defined() ? targets_.const_data_ptr<int64_t>() + begin : nullptr;
  const at::Tensor weights = token_weights_.defined() ? token_weights_.narrow(0, begin, count) : at::Tensor();
  args.token_weights = weights.defined() ? weights.data_ptr() : nullptr;
  args.metrics = metrics_.narrow(1, begin, count).data_ptr();
  args.metrics_stride = metrics_.stride(0);
  args.num_rows = count;
  args.vocab = vocab_;
  args.options = options_;
  run_rows(args, student.device());
}

void HeadRun::backward(int64_t begin, int64_t count) {
  const bool gathers = index_.defined();
  const at::Tensor gradient = gradient_.narrow(0, 0, count);
  const at::Tensor hidden = gathers ? hidden_.narrow(0, 0, count) : hidden_NH_.narrow(0, begin, count);
  at::Tensor hidden_gradient =
      gathers ? hidden_gradient_.narrow(0, 0, count) : grads_->hidden_NH.narrow(0, begin, count);
  hidden_gradient_product(hidden_gradient, gradient, weight_VH_, grads_->grad_scale);
  if (gathers) {
    grads_->hidden_NH.index_copy_(0, index_.narrow(0, begin, count), hidden_gradient);
  }
  const bool accumulates = grads_->accumulate || begin > 0;
  if (grads_->weight_VH.defined()) {
    weight_gradient_product(grads_->weight_VH.narrow(0, 0, vocab_), gradient, hidden, grads_->grad_scale, accumulates);
  }
  if (grads_->bias_V.defined()) {
    bias_gradient_sum(bias_gradient_, gradient);
    at::Tensor bias = grads_->bias_V.narrow(0, 0, vocab_);
    if (accumulates) {
      bias.add_(bias_gradient_, grads_->grad_scale);
    } else {
      bias.copy_(bias_gradient_).mul_(grads_->grad_scale);
    }
  }
}

// What no product writes: hidden rows that are not computed, and in a written weight gradient the vocabulary rows
// beyond vocab_, or all of them where there is no token.
void HeadRun::zero_what_no_product_writes() {
  if (index_.defined() || num_rows_ == 0) {
    grads_->hidden_NH.zero_();
  }
  if (grads_->accumulate) {
    return;
  }
  const int64_t written = num_rows_ > 0 ? vocab_ : 0;
  for (const at::Tensor& gradient : {grads_->weight_VH, grads_->bias_V}) {
    if (gradient.defined()) {
      gradient.narrow(0, written, gradient.size(0) - written).zero_();
    }
  }
}

at::Tensor HeadRun::run() {
  if (targets_.defined()) {
    assert_labels(targets_, vocab_);
  }
  if (grads_ != nullptr) {
    zero_what_no_product_writes();
  }
  for (int64_t begin = 0; begin < num_rows_; begin += plan_.gradient_rows) {
    const int64_t count = std::min(plan_.gradient_rows, num_rows_ - begin);
    for (int64_t offset = 0; offset < count; offset += plan_.logits_rows) {
      logits_and_rows(begin + offset, std::min(plan_.logits_rows, count - offset), offset);
    }
    if (grads_ != nullptr) {
      backward(begin, count);
    }
  }
  if (num_rows_ == in_.hidden_NH.size(0)) {
    return metrics_;
  }
  at::Tensor metrics_MN = at::zeros({kNumTokenMetrics, in_.hidden_NH.size(0)}, metrics_.options());
  return index_.defined() ? metrics_MN.index_copy_(1, index_, metrics_) : metrics_MN;
}

} // namespace

absl::StatusOr<ChunkPlan> linear_head_plan(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, bool needs_grad) {
  const auto device = inputs.hidden_NH.is_meta() ? inputs.meta_device : inputs.hidden_NH.device().type();
  return resolve_chunks(chunks, head_shape(inputs, options, needs_grad, device));
}

LinearHeadOutput linear_head(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, LinearHeadGrads* grads,
    const at::Tensor& arena) {
  const c10::NoGradGuard no_grad;
  check_linear_head(inputs, options, grads);
  const c10::DeviceGuard device(inputs.hidden_NH.device());
  const absl::StatusOr<ChunkPlan> plan = linear_head_plan(inputs, options, chunks, grads != nullptr);
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  if (inputs.hidden_NH.is_meta()) {
    const int64_t tokens = inputs.hidden_NH.size(0);
    const auto opt = inputs.hidden_NH.options();
    const at::Tensor meta_arena = at::empty({plan->arena_bytes}, opt.dtype(at::kByte));
    at::Tensor i, t;
    if (gathers_rows(inputs)) {
      i = at::empty({inputs.valid_tokens}, opt.dtype(at::kLong));
      t = at::empty({inputs.valid_tokens}, opt.dtype(at::kLong));
    }
    at::Tensor metrics =
        at::empty({kNumTokenMetrics, gathers_rows(inputs) ? inputs.valid_tokens : tokens}, opt.dtype(at::kFloat));
    { at::empty({plan->bytes - plan->arena_bytes}, opt.dtype(at::kByte)); }
    if (gathers_rows(inputs)) {
      metrics = at::empty({kNumTokenMetrics, tokens}, opt.dtype(at::kFloat));
    }
    return {metrics};
  }
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
  return {HeadRun(inputs, options, grads, *plan, std::move(scratch)).run()};
}

} // namespace distill::losses
