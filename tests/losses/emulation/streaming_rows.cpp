// The streaming row kernel, compiled for a CPU.
#define __CUDA_ARCH__ 900
#include "losses/rows/cuda/streaming/kernel.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {

namespace {

template <typename T, typename Logit>
void run(const RowArgs& args, const streaming::Plan& plan) {
  const RowConstants<T> constants = row_constants<T>(args);
  streaming::with_kernel<Logit>(args, [&](auto teacher, auto vector, auto call) {
    constexpr bool kTeacher = decltype(teacher)::value;
    constexpr int kVector = decltype(vector)::value;
    using G = streaming::Geometry<T, kTeacher, decltype(call)>;
    emulation::run_grid(static_cast<int>(args.num_rows) * plan.blocks, G::kThreads, plan.blocks, [&] {
      streaming::rows<T, Logit, kTeacher, kVector, decltype(call)>(args, constants, plan);
    });
  });
}

} // namespace

void emulate_streaming_rows(const RowArgs& args, int blocks, int slots) {
  const streaming::Plan plan{.blocks = blocks, .slots = slots};
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return run<float, float>(args, plan);
    case ElementType::kBFloat16:
      return run<float, __nv_bfloat16>(args, plan);
    case ElementType::kFloat64:
      return run<double, double>(args, plan);
  }
}

} // namespace distill::losses::testing
