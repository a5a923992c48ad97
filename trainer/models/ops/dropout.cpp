#include "trainer/models/ops/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/dropout_kernel.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/random_key.h"

namespace distill::models {
namespace {

template <typename T>
void dropout_on_cpu(const DropoutArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  constexpr int64_t kGrain = 1 << 12; // groups
  const int64_t last = args.first + args.n;
  at::parallel_for(
      args.first / kDropoutGroup, (last + kDropoutGroup - 1) / kDropoutGroup, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) {
          bool stays[kDropoutGroup];
          dropout_group(args, group, stays);
          const int64_t first = group * kDropoutGroup;
          for (int64_t i = std::max(first, args.first); i < std::min(first + kDropoutGroup, last); ++i) {
            const int64_t at = i - args.first;
            out[at] = stays[i - first] ? static_cast<T>(static_cast<double>(x[at]) * args.scale) : static_cast<T>(0);
          }
        }
      });
}

} // namespace

at::Tensor dropout(const at::Tensor& x_NI, const Dropout& dropout) {
  TORCH_CHECK(
      x_NI.dim() == 2 && x_NI.is_contiguous() && dropout.probability >= 0 && dropout.probability < 1,
      "dropout: a contiguous matrix and a probability below 1 are expected, found ", x_NI.sizes(), ", strides ",
      x_NI.strides(), ", ", dropout.probability);
  at::Tensor out_NI = at::empty_like(x_NI);
  if (x_NI.is_meta()) {
    return out_NI;
  }
  const uint64_t place = static_cast<uint64_t>(dropout.step) << 24 ^ static_cast<uint64_t>(dropout.stream);
  const DropoutArgs args{
      x_NI.const_data_ptr(),
      out_NI.mutable_data_ptr(),
      x_NI.numel(),
      dropout.first_row * x_NI.size(1),
      mixed(mixed(dropout.seed) ^ place),
      static_cast<uint32_t>(std::llround(std::ldexp(dropout.probability, 32))),
      1 / (1 - dropout.probability),
      element_type(x_NI.scalar_type())};
  if (device::runs_on_cuda(x_NI)) {
    run_kernel("dropout", launch_dropout, args, x_NI.device());
  } else {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kBFloat16, at::kHalf, x_NI.scalar_type(), "dropout", [&] { dropout_on_cpu<scalar_t>(args); });
  }
  return out_NI;
}

} // namespace distill::models
