// Launches the streaming row kernel that plan.h names, a block for each row.
#include "losses/rows/cuda/streaming/kernel.cuh"
#include "losses/rows/cuda/streaming/plan.h"

namespace distill::losses {

namespace {

template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
const char* launch_as(const RowArgs& args, cudaStream_t stream) {
  const auto kernel = streaming::rows<T, Logit, kTeacher, kVector, Call>;
  kernel<<<static_cast<unsigned>(args.num_rows), streaming::kThreads, 0, stream>>>(args, row_constants<T>(args));
  return launch_error();
}

template <typename T, typename Logit>
const char* launch(const RowArgs& args, cudaStream_t stream) {
  return streaming::with_kernel<Logit>(args, [&](auto teacher, auto vector, auto call) {
    return launch_as<T, Logit, decltype(teacher)::value, decltype(vector)::value, decltype(call)>(args, stream);
  });
}

} // namespace

const char* launch_rows_streaming(const RowArgs& args, cudaStream_t stream) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return launch<float, float>(args, stream);
    case ElementType::kBFloat16:
      return launch<float, __nv_bfloat16>(args, stream);
    case ElementType::kFloat64:
      return launch<double, double>(args, stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
