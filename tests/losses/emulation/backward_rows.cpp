// The backward kernel of given logits, compiled for a CPU.
#define __CUDA_ARCH__ 900
#include "losses/logits/logits_backward.cuh"

#include <stdexcept>

#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {

namespace {

template <Divergence kDivergence, bool kTeacher, bool kPlain, typename Logit, int kSize>
void run(const RowArgs& args) {
  const RowConstants<float> constants = row_constants<float>(args);
  const auto blocks = static_cast<int>(backward::blocks_of_row(args.vocab, kSize));
  emulation::run_grid(blocks, backward::kThreads, 1, [&] {
    backward::logits_backward<kDivergence, kTeacher, kPlain, float, Logit, kSize>(args, constants);
  });
}

template <Divergence kDivergence, bool kTeacher, typename Logit>
void run_row(const RowArgs& args, bool vectors) {
  constexpr int kSize = kVectorBytes / sizeof(Logit);
  if (!vectors) {
    run<kDivergence, kTeacher, false, Logit, 1>(args);
  } else if (backward::is_plain(args.options)) {
    run<kDivergence, kTeacher, true, Logit, kSize>(args);
  } else {
    run<kDivergence, kTeacher, false, Logit, kSize>(args);
  }
}

template <typename Logit>
void run_rows(const RowArgs& args) {
  const bool vectors = backward::begin_alike(args);
  for (int64_t r = 0; r < args.num_rows; ++r) {
    RowArgs row = args;
    row.num_rows = 1;
    row.student = static_cast<const Logit*>(args.student) + r * args.student_stride;
    row.gradient = static_cast<Logit*>(args.gradient) + r * args.gradient_stride;
    row.saved = static_cast<float*>(args.saved) + r;
    row.targets = args.targets == nullptr ? nullptr : args.targets + r;
    row.token_weights = args.token_weights == nullptr ? nullptr : static_cast<const float*>(args.token_weights) + r;
    if (args.teacher == nullptr) {
      run_row<Divergence::kNone, false, Logit>(row, vectors);
      continue;
    }
    row.teacher = static_cast<const Logit*>(args.teacher) + r * args.teacher_stride;
    switch (effective_divergence(args.options)) {
      case Divergence::kJsd:
        run_row<Divergence::kJsd, true, Logit>(row, vectors);
        break;
      case Divergence::kSkewForwardKl:
        run_row<Divergence::kSkewForwardKl, true, Logit>(row, vectors);
        break;
      default:
        throw std::runtime_error("not compiled for this divergence");
    }
  }
}

} // namespace

void emulate_logits_backward(const RowArgs& args) {
  args.logits_type == ElementType::kFloat32 ? run_rows<float>(args) : run_rows<__nv_bfloat16>(args);
}

} // namespace distill::losses::testing
