#pragma once

#include <type_traits>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/row_alignment.h"
#include "losses/rows/row_args.h"
#include "losses/rows/row_math.h"

// Which streaming row kernel a call takes.
namespace distill::losses::streaming {

// Whether both sides' rows begin equally far from a multiple of 16 bytes.
inline bool sides_begin_alike(const RowArgs& args) {
  return rows_begin_alike(
      args.student, args.student_stride, args.teacher, args.teacher_stride, element_bytes(args.logits_type));
}

// What a kernel is compiled for: any call, whose options are looked at for every column.
struct AnyCall {
  static constexpr bool kPlain = false;
};

// One divergence, or kNone without a teacher, at T = 1, without bias, softcap or label smoothing.
template <Divergence kIts>
struct PlainCall {
  static constexpr bool kPlain = true;
  static constexpr Divergence kDivergence = kIts;
};

// use(whether there is a teacher, columns of a vector, the kind of call) with the constants of the kernel that a call
// with logits of type Logit takes.
template <typename Logit, typename Use>
auto with_kernel(const RowArgs& args, const Use& use) {
  constexpr bool kFp64 = sizeof(Logit) == sizeof(double);
  using Vector = std::integral_constant<int, kFp64 ? 2 : 4>;
  if (args.teacher != nullptr && !sides_begin_alike(args)) {
    return use(std::true_type(), std::integral_constant<int, 1>(), AnyCall());
  }
  if constexpr (!kFp64) {
    const cluster::Mode mode = cluster_mode(args);
    if ((mode == cluster::Mode::kUnit && is_usual(args)) || mode == cluster::Mode::kUnitLoss) {
      if (args.teacher == nullptr) {
        return use(std::false_type(), Vector(), PlainCall<Divergence::kNone>());
      }
      switch (effective_divergence(args.options)) {
        case Divergence::kJsd:
          return use(std::true_type(), Vector(), PlainCall<Divergence::kJsd>());
        case Divergence::kForwardKl:
          return use(std::true_type(), Vector(), PlainCall<Divergence::kForwardKl>());
        case Divergence::kReverseKl:
          return use(std::true_type(), Vector(), PlainCall<Divergence::kReverseKl>());
        default: // not usual
          break;
      }
    }
  }
  return args.teacher == nullptr ? use(std::false_type(), Vector(), AnyCall())
                                 : use(std::true_type(), Vector(), AnyCall());
}

} // namespace distill::losses::streaming
