// The streaming row kernel, compiled for a CPU.
#define __CUDA_ARCH__ 900
#include "losses/rows/cuda/streaming/kernel.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {

namespace {

template <typename T, typename Logit>
void run(const RowArgs& args, int cluster_size) {
  const RowConstants<T> constants = row_constants<T>(args);
  streaming::with_kernel<Logit>(args, [&](auto teacher, auto vector, auto call) {
    constexpr bool kTeacher = decltype(teacher)::value;
    constexpr int kVector = decltype(vector)::value;
    const int64_t slice = streaming::slice_columns(args.vocab, cluster_size, kVector);
    emulation::run_grid(static_cast<int>(args.num_rows) * cluster_size, streaming::kThreads, cluster_size, [&] {
      streaming::rows<T, Logit, kTeacher, kVector, decltype(call)>(args, constants, cluster_size, slice);
    });
  });
}

} // namespace

void emulate_streaming_rows(const RowArgs& args, int cluster_size) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return run<float, float>(args, cluster_size);
    case ElementType::kBFloat16:
      return run<float, __nv_bfloat16>(args, cluster_size);
    case ElementType::kFloat64:
      return run<double, double>(args, cluster_size);
  }
}

} // namespace distill::losses::testing
