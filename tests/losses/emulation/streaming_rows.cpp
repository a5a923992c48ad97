// The streaming row kernel, compiled for a CPU.
#define __CUDA_ARCH__ 900
#include "losses/rows/cuda/streaming/kernel.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {

namespace {

template <typename T, typename Logit, bool kTeacher, int kVector>
void run(const RowArgs& args, int cluster_size) {
  const RowConstants<T> constants = row_constants<T>(args);
  const int64_t slice = streaming::slice_columns(args.vocab, cluster_size, kVector);
  emulation::run_grid(static_cast<int>(args.num_rows) * cluster_size, streaming::kThreads, cluster_size, [&] {
    streaming::rows<T, Logit, kTeacher, kVector>(args, constants, cluster_size, slice);
  });
}

template <typename T, typename Logit>
void run_sides(const RowArgs& args, int cluster_size) {
  constexpr int kVector = 16 / sizeof(Logit);
  if (args.teacher == nullptr) {
    run<T, Logit, false, kVector>(args, cluster_size);
  } else if (streaming::sides_begin_alike(args)) {
    run<T, Logit, true, kVector>(args, cluster_size);
  } else {
    run<T, Logit, true, 1>(args, cluster_size);
  }
}

} // namespace

void emulate_streaming_rows(const RowArgs& args, int cluster_size) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return run_sides<float, float>(args, cluster_size);
    case ElementType::kBFloat16:
      return run_sides<float, __nv_bfloat16>(args, cluster_size);
    case ElementType::kFloat64:
      return run_sides<double, double>(args, cluster_size);
  }
}

} // namespace distill::losses::testing
