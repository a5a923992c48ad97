#include "trainer/models/ops/embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/embedding_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

// The token ids in ascending order, and the original position of each.
std::tuple<at::Tensor, at::Tensor> sort_tokens(const at::Tensor& tokens_N) {
  auto sorted = tokens_N.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  if (tokens_N.is_meta() && device::runs_on_cuda(tokens_N)) { // the CUDA sort's own buffers
    at::empty({2 * tokens_N.numel()}, tokens_N.options());
  }
  return sorted;
}

// The factor by which embeddings in `dtype` are multiplied: in fp32 first, as transformers keeps it.
double rounded_scale(double scale, at::ScalarType dtype) {
  return scale == 1 ? 1 : at::scalar_tensor(static_cast<float>(scale), dtype).item<double>();
}

template <typename T, typename G>
void backward_cpu(const at::Tensor& tokens_N, const at::Tensor& dx_NH, at::Tensor& grad_VH, double scale) {
  const auto [sorted, order] = sort_tokens(tokens_N);
  const int64_t* token = sorted.template const_data_ptr<int64_t>();
  const int64_t* source = order.template const_data_ptr<int64_t>();
  const int64_t size = dx_NH.size(1);
  std::vector<int64_t> starts; // where runs of one token begin
  for (int64_t n = 0; n < tokens_N.size(0); ++n) {
    if (n == 0 || token[n] != token[n - 1]) {
      starts.push_back(n);
    }
  }
  starts.push_back(tokens_N.size(0));
  const T* dx = dx_NH.const_data_ptr<T>();
  G* grad = grad_VH.mutable_data_ptr<G>();
  const int64_t row_stride = grad_VH.stride(0);
  at::parallel_for(0, static_cast<int64_t>(starts.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) {
      G* row = grad + token[starts[run]] * row_stride;
      for (int64_t n = starts[run]; n < starts[run + 1]; ++n) {
        const T* values = dx + source[n] * size;
        for (int64_t h = 0; h < size; ++h) {
          row[h] += static_cast<G>(scale) * static_cast<G>(values[h]);
        }
      }
    }
  });
}

void backward_cuda(const at::Tensor& tokens_N, const at::Tensor& dx_NH, at::Tensor& grad_VH, double scale) {
  const at::ScalarType expected = dx_NH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(
      grad_VH.scalar_type() == expected, "embedding_backward: a gradient of dtype ", expected, " is expected, found ",
      grad_VH.scalar_type());
  const auto [sorted, order] = sort_tokens(tokens_N);
  EmbeddingBackwardArgs args{};
  args.sorted = sorted.const_data_ptr<int64_t>();
  args.order = order.const_data_ptr<int64_t>();
  args.dx = dx_NH.const_data_ptr();
  args.grad = grad_VH.mutable_data_ptr();
  args.grad_stride = grad_VH.stride(0);
  args.tokens = dx_NH.size(0);
  args.hidden = dx_NH.size(1);
  args.vocab = grad_VH.size(0);
  args.scale = scale;
  args.type = element_type(dx_NH.scalar_type());
  run_kernel("embedding_backward", launch_embedding_backward, args, dx_NH.device());
}

} // namespace

at::Tensor embedding_forward(const at::Tensor& tokens_N, const at::Tensor& weight_VH, double scale) {
  at::Tensor x_NH = weight_VH.index_select(0, tokens_N);
  return scale == 1 ? x_NH : x_NH.mul_(rounded_scale(scale, weight_VH.scalar_type()));
}

void embedding_backward(
    const at::Tensor& tokens_N, const at::Tensor& dx_in, at::Tensor& grad_VH, double unrounded_scale) {
  if (!grad_VH.defined() || tokens_N.numel() == 0) {
    return;
  }
  TORCH_CHECK(
      dx_in.dim() == 2 && dx_in.size(0) == tokens_N.numel() && dx_in.size(1) == grad_VH.size(1),
      "embedding_backward: dx [", tokens_N.numel(), ", ", grad_VH.size(1), "] is expected, found ", dx_in.sizes());
  TORCH_CHECK(grad_VH.stride(1) == 1, "embedding_backward: rows of the gradient must be contiguous");
  const at::Tensor dx_NH = dx_in.contiguous();
  const double scale = rounded_scale(unrounded_scale, dx_NH.scalar_type());
  if (device::runs_on_cuda(grad_VH)) {
    backward_cuda(tokens_N, dx_NH, grad_VH, scale);
    return;
  }
  if (tokens_N.is_meta()) {
    sort_tokens(tokens_N);
    return;
  }
  TORCH_CHECK(
      tokens_N.min().item<int64_t>() >= 0 && tokens_N.max().item<int64_t>() < grad_VH.size(0),
      "embedding_backward: token ids in [0, ", grad_VH.size(0), ") are expected");
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dx_NH.scalar_type(), "embedding_backward", [&] {
    if (grad_VH.scalar_type() == at::kDouble) {
      backward_cpu<scalar_t, double>(tokens_N, dx_NH, grad_VH, scale);
    } else {
      backward_cpu<scalar_t, float>(tokens_N, dx_NH, grad_VH, scale);
    }
  });
}

} // namespace distill::models
