#include "trainer/models/ops/rounded_sum.h"

#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/rounded_sum_kernel.h"
#include "trainer/models/ops/rounding_math.h"

namespace distill::models {
namespace {

void add_rounded_on_cpu(const RoundedSumArgs& args) {
  constexpr int64_t kGrain = 1 << 12; // groups
  const int64_t groups = (args.n + kRoundingGroup - 1) / kRoundingGroup;
  at::parallel_for(0, groups, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      add_rounded_group(args, group);
    }
  });
}

} // namespace

void add_rounded(at::Tensor sum, const at::Tensor& values, bool accumulate, const RoundingKey& key) {
  TORCH_CHECK(
      sum.scalar_type() == at::kBFloat16 && values.scalar_type() == at::kFloat && sum.is_contiguous() &&
          values.is_contiguous() && sum.numel() == values.numel() && sum.device() == values.device() &&
          key.first % kRoundingGroup == 0,
      "add_rounded: expected a bf16 sum and fp32 values of the same size on one device, from a position that is a "
      "multiple of ",
      kRoundingGroup, "; found ", sum.scalar_type(), " [", sum.numel(), "], ", values.scalar_type(), " [",
      values.numel(), "], position ", key.first);
  if (sum.is_meta()) {
    return;
  }
  const RoundedSumArgs args{
      static_cast<uint16_t*>(sum.mutable_data_ptr()),
      values.const_data_ptr<float>(),
      sum.numel(),
      accumulate,
      static_cast<uint64_t>(key.step),
      key.unit,
      key.draw,
      key.first};
  if (device::runs_on_cuda(sum)) {
    run_kernel("add_rounded", launch_rounded_sum, args, sum.device());
  } else {
    add_rounded_on_cpu(args);
  }
}

} // namespace distill::models
