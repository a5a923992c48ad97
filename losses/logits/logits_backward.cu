// Launches the backward kernel for a type of logits and a divergence.
#include "losses/logits/logits_backward.h"

#include <algorithm>

#include "losses/logits/logits_backward.cuh"

namespace distill::losses {

namespace {

template <Divergence kDivergence, bool kTeacher, typename T, typename Logit>
const char* launch_as(const RowArgs& a, cudaStream_t stream) {
  using backward::logits_backward;
  constexpr int64_t kMaxRowsOfGrid = 65535;
  constexpr int kSize = kVectorBytes / sizeof(Logit);
  const bool vectors = backward::begin_alike(a);
  const int64_t rows = std::min(a.num_rows, kMaxRowsOfGrid);
  const dim3 grid(
      static_cast<unsigned>(backward::blocks_of_row(a.vocab, vectors ? kSize : 1)), static_cast<unsigned>(rows),
      static_cast<unsigned>((a.num_rows + rows - 1) / rows));
  // Column by column the plain kernel is not faster than the other one.
  const auto kernel = !vectors        ? logits_backward<kDivergence, kTeacher, false, T, Logit, 1>
      : backward::is_plain(a.options) ? logits_backward<kDivergence, kTeacher, true, T, Logit, kSize>
                                      : logits_backward<kDivergence, kTeacher, false, T, Logit, kSize>;
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
