#include "losses/head/capture.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <functional>

#include "losses/checks.h"
#include "losses/head/head_scratch.h"
#include "losses/head/products.h"
#include "losses/meta_device.h"
#include "losses/rows/sparse_dispatch.h"

namespace distill::losses {

namespace {

// Describes the teacher as the student of a head that has no teacher and no gradients.
LinearHeadInputs as_head(const CaptureInputs& in) {
  LinearHeadInputs head;
  head.hidden_NH = in.hidden_NG;
  head.weight_VH = in.weight_VG;
  head.bias_V = in.bias_V;
  head.vocab_size = in.vocab_size;
  head.columns = in.columns;
  head.meta_device = in.meta_device;
  return head;
}

LossOptions head_options(const CaptureInputs& in) {
  return {
      .divergence = Divergence::kNone, .temperature = in.temperature, .soft_weight = 0, .student_softcap = in.softcap};
}

// A Capture is one call: it holds the buffers of a chunk and loops over the chunks.
class Capture {
 public:
  Capture(const CaptureInputs& in, int64_t entries, const ChunkOptions& chunks) : in_(in) {
    check_linear_head(as_head(in), head_options(in), /*grads=*/nullptr);
    const absl::StatusOr<ChunkPlan> plan = capture_plan(in, entries, chunks);
    TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
    chunk_rows_ = plan->logits_rows.front(); // without gradients all chunks are equal
    kernels_ = kernel_device(in.hidden_NG, in.meta_device);
    columns_ = effective_columns(as_head(in));
    vocab_ = count_columns(columns_);
    const at::ScalarType compute = compute_type(in.hidden_NG.scalar_type());
    hidden_NG_ = readable_by_products(in.hidden_NG);
    weight_VG_ = readable_by_products(in.weight_VG);
    Scratch scratch(at::empty({plan->arena_bytes}, in.hidden_NG.options().dtype(at::kByte)));
    if (in.bias_V.defined()) {
      bias_V_ = take_columns(in.bias_V, columns_).contiguous();
      if (bias_V_.scalar_type() != compute) {
        bias_V_ = scratch.matrix(1, vocab_, compute).squeeze(0).copy_(bias_V_);
      }
    }
    logits_CV_ = scratch.matrix(chunk_rows_, vocab_, compute);
    entries_CK_ = scratch.matrix(chunk_rows_, entries, compute);
  }

  // Calls body(begin, count, logits_RV, entries_RK) for each chunk of tokens, with logits after bias and softcap.
  void for_chunks(const std::function<void(int64_t, int64_t, const at::Tensor&, const at::Tensor&)>& body) const {
    const int64_t tokens = in_.hidden_NG.size(0);
    for (int64_t begin = 0; begin < tokens; begin += chunk_rows_) {
      const int64_t count = std::min(chunk_rows_, tokens - begin);
      const at::Tensor logits_RV = logits_CV_.narrow(0, 0, count);
      for (const ProductPart& part : product_parts(columns_)) {
        logits_product(
            kernels_, logits_RV.narrow(1, part.column, part.size()), hidden_NG_.narrow(0, begin, count),
            weight_VG_.narrow(0, part.rows.begin, part.size()));
      }
      apply_bias_and_softcap(logits_RV, bias_V_, in_.softcap);
      body(begin, count, logits_RV, entries_CK_.narrow(0, 0, count));
    }
  }

  int64_t vocab() const {
    return vocab_;
  }
  // The ids of columns.
  at::Tensor ids(const at::Tensor& columns) const {
    return columns_ == ColumnRanges{{0, vocab_}} ? columns : ids_of_columns(columns, columns_);
  }
  c10::DeviceType kernels() const {
    return kernels_;
  }

 private:
  const CaptureInputs& in_;
  int64_t chunk_rows_ = 0;
  ColumnRanges columns_;
  int64_t vocab_ = 0; // how many
  c10::DeviceType kernels_ = c10::kCPU;
  at::Tensor hidden_NG_;
  at::Tensor weight_VG_;
  at::Tensor bias_V_;
  at::Tensor logits_CV_;
  at::Tensor entries_CK_;
};

} // namespace

absl::StatusOr<ChunkPlan> capture_plan(const CaptureInputs& in, int64_t entries, const ChunkOptions& chunks) {
  const c10::DeviceType kernels = kernel_device(in.hidden_NG, in.meta_device);
  HeadShape shape = head_shape(as_head(in), head_options(in), /*needs_grad=*/false, kernels);
  shape.teacher_entries = entries;
  shape.entry_bytes = static_cast<int64_t>(c10::elementSize(compute_type(in.hidden_NG.scalar_type())));
  if (in.bias_V.defined()) {
    shape.fixed_arena_bytes = row_bytes(shape.vocab, shape.entry_bytes);
  }
  return resolve_chunks(chunks, shape);
}

TopK capture_topk(const CaptureInputs& in, int64_t k, const ChunkOptions& chunks) {
  const c10::NoGradGuard no_grad;
  const c10::DeviceGuard device(in.hidden_NG.device());
  TORCH_CHECK(k >= 1 && k <= kMaxEntries, "k: expected 1 to ", kMaxEntries, ", found ", k);
  const Capture capture(in, k, chunks);
  TORCH_CHECK(k <= capture.vocab(), "k: expected at most the vocabulary, ", capture.vocab(), ", found ", k);
  const int64_t tokens = in.hidden_NG.size(0);
  const at::TensorOptions numbers = in.hidden_NG.options().dtype(compute_type(in.hidden_NG.scalar_type()));
  TopK out;
  out.ids_NK = at::empty({tokens, k}, numbers.dtype(at::kInt));
  out.log_probs_NK = at::empty({tokens, k}, numbers);
  out.tail_N = at::empty({tokens}, numbers);
  const at::Tensor metrics_MN = at::empty({kNumTokenMetrics, tokens}, numbers);
  const at::Tensor saved_SN = at::empty({kNumSavedValues, tokens}, numbers);
  capture.for_chunks([&](int64_t begin, int64_t count, const at::Tensor& logits_RV, const at::Tensor& entries_RK) {
    const at::Tensor ids_RK = out.ids_NK.narrow(0, begin, count);
    run_topk(logits_RV, ids_RK);
    RowTensors rows;
    rows.student_RV = logits_RV;
    rows.metrics_MR = metrics_MN.narrow(1, begin, count);
    rows.saved_SR = saved_SN.narrow(1, begin, count);
    const SparseTensors teacher{.ids_NK = ids_RK, .entry_logits_RK = entries_RK};
    run_topk_log_probs(rows, teacher, in.temperature, out.tail_N.narrow(0, begin, count), capture.kernels());
    out.log_probs_NK.narrow(0, begin, count).copy_(entries_RK);
  });
  out.ids_NK = capture.ids(out.ids_NK);
  return out;
}

Samples capture_samples(
    const CaptureInputs& in, const at::Tensor& keys_N, const SampleOptions& options, const ChunkOptions& chunks) {
  const c10::NoGradGuard no_grad;
  const c10::DeviceGuard device(in.hidden_NG.device());
  TORCH_CHECK(
      options.samples >= 1 && options.samples <= kMaxEntries, "samples: expected 1 to ", kMaxEntries, ", found ",
      options.samples);
  TORCH_CHECK(
      options.exponent > 0 && options.exponent <= 1, "exponent: expected a number in (0, 1], found ", options.exponent);
  const int64_t tokens = in.hidden_NG.size(0);
  TORCH_CHECK(
      keys_N.defined() && keys_N.scalar_type() == at::kLong && keys_N.dim() == 1 && keys_N.size(0) == tokens &&
          keys_N.device() == in.hidden_NG.device(),
      "keys_N: expected Long of shape [", tokens, "] on ", in.hidden_NG.device(), ", found ",
      keys_N.defined() ? keys_N.toString() : "none");
  const Capture capture(in, /*entries=*/0, chunks);
  const at::Tensor keys = keys_N.contiguous();
  Samples out;
  out.ids_NS = at::empty({tokens, options.samples}, in.hidden_NG.options().dtype(at::kInt));
  out.weights_NS = at::empty({tokens, options.samples}, in.hidden_NG.options().dtype(at::kFloat));
  capture.for_chunks([&](int64_t begin, int64_t count, const at::Tensor& logits_RV, const at::Tensor&) {
    run_samples(
        logits_RV, keys.narrow(0, begin, count), in.temperature, options, out.ids_NS.narrow(0, begin, count),
        out.weights_NS.narrow(0, begin, count));
  });
  out.ids_NS = capture.ids(out.ids_NS);
  return out;
}

} // namespace distill::losses
