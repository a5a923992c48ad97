// Launches the backward kernel for a type of logits and a divergence.
#include "losses/logits/logits_backward.h"

#include <algorithm>

#include "losses/logits/logits_backward.cuh"

namespace distill::losses {

namespace {

bool aligned(const void* data, int64_t stride, size_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % backward::kVectorBytes == 0 &&
      static_cast<size_t>(stride) * element_bytes % backward::kVectorBytes == 0;
}

template <Divergence kDivergence, bool kTeacher, typename T, typename Logit>
const char* launch_as(const RowArgs& a, cudaStream_t stream) {
  using backward::logits_backward;
  constexpr int64_t kMaxRowsOfGrid = 65535;
  constexpr int kSize = backward::kVectorBytes / sizeof(Logit);
  const int64_t rows = std::min(a.num_rows, kMaxRowsOfGrid);
  const dim3 grid(
      static_cast<unsigned>((a.vocab + backward::kPerBlock - 1) / backward::kPerBlock), static_cast<unsigned>(rows),
      static_cast<unsigned>((a.num_rows + rows - 1) / rows));
  const bool vectors = aligned(a.student, a.student_stride, sizeof(Logit)) &&
      (!kTeacher || aligned(a.teacher, a.teacher_stride, sizeof(Logit))) &&
      aligned(a.gradient, a.gradient_stride, sizeof(Logit));
  const LossOptions& o = a.options;
  const bool plain = o.temperature == 1 && o.student_softcap == 0 && o.teacher_softcap == 0;
  const auto kernel = plain ? (vectors ? logits_backward<kDivergence, kTeacher, true, T, Logit, kSize>
                                       : logits_backward<kDivergence, kTeacher, true, T, Logit, 1>)
                            : (vectors ? logits_backward<kDivergence, kTeacher, false, T, Logit, kSize>
                                       : logits_backward<kDivergence, kTeacher, false, T, Logit, 1>);
  kernel<<<grid, backward::kThreads, 0, stream>>>(a, row_constants<T>(a));
  return launch_error();
}

template <typename T, typename Logit>
const char* launch(const RowArgs& a, cudaStream_t stream) {
  if (a.teacher == nullptr) {
    return launch_as<Divergence::kNone, false, T, Logit>(a, stream);
  }
  return with_divergence(effective_divergence(a.options), [&](auto divergence) {
    return launch_as<decltype(divergence)::value, true, T, Logit>(a, stream);
  });
}

} // namespace

const char* launch_logits_backward(const RowArgs& args, void* stream) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return launch<float, float>(args, cuda_stream);
    case ElementType::kBFloat16:
      return launch<float, __nv_bfloat16>(args, cuda_stream);
    case ElementType::kFloat64:
      return launch<double, double>(args, cuda_stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
