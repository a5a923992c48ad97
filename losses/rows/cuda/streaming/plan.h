#pragma once

#include <type_traits>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/row_alignment.h"
#include "losses/rows/row_args.h"
#include "losses/rows/row_math.h"

// This file says which streaming row kernel a call takes, and how its threads share a row.
namespace distill::losses::streaming {

constexpr int kMaxBlocks = 16; // to a row

// A Plan says how a row is spread over the blocks of a cluster.
struct Plan {
  int blocks = 1; // to a row
  int slots = 1; // groups of columns of a thread for which its block has shared memory
};

// A kernel that is compiled for any call looks at the options for every column.
struct AnyCall {
  static constexpr bool kPlain = false;
  static constexpr bool kLossAlone = false;
  static constexpr int kVectors = 1; // of a group, see Geometry
};

// A plain call is JSD, a KL or labels alone (kNone), at T = 1, without bias, softcap or label smoothing.
template <Divergence kIts, bool kLoss>
struct PlainCall {
  static constexpr bool kPlain = true;
  static constexpr bool kLossAlone = kLoss; // MetricSet::kLoss
  static constexpr Divergence kDivergence = kIts;
  // Two vectors take fewer instructions. With one, JSD with the loss alone has room for seven groups of 16 KiB, not
  // three of 32, and with all metrics hardly spills. Forward KL is slower with one; reverse KL was not measured.
  static constexpr int kVectors = kIts == Divergence::kJsd ? 1 : 2;
};

// A Geometry has the threads, and says what each takes at a time, with numbers of type T: a group of vectors, each of
// 16 bytes of either side.
template <typename T, bool kTeacher, typename Call>
struct Geometry {
  // This was measured, docs/loss_head_notes.md. AnyCall takes more registers, and a number in fp64 takes two of them.
  static constexpr int kThreads = Call::kPlain ? 512 : 384; // of a block
  static constexpr int kBlocksAtOnce = // on a multiprocessor: while one waits, the others work
      sizeof(T) == 8 ? 1 : (Call::kPlain || kTeacher ? 2 : 3);
  static constexpr int kColumns = 16 / sizeof(T); // of a vector
  static constexpr int kVectors = Call::kVectors;
  // Where there are as many slots, a thread waits only until all but kAhead - 1 of its groups' copies are complete.
  static constexpr int kAhead = (kTeacher ? 6 : 12) / kVectors;
  static constexpr int kSideBytes = kThreads * 16; // of one side's vectors of all threads
  static constexpr int kVectorBytes = kSideBytes * (kTeacher ? 2 : 1);
  static constexpr int kGroupBytes = kVectorBytes * kVectors;
  static constexpr int kVectorStep = kThreads * kColumns; // columns from a thread's vector to its next one
  static constexpr int kGroupColumns = kVectorStep * kVectors; // of all threads

  // Returns the most groups of a thread in a row of `vocab` columns, which may begin between multiples of 16 bytes.
  static int most_groups(int64_t vocab, int blocks) {
    const int64_t step = static_cast<int64_t>(kGroupColumns) * blocks;
    return static_cast<int>((vocab + kColumns - 1 + step - 1) / step);
  }
};

// Returns whether both sides' rows begin equally far from a multiple of 16 bytes.
inline bool sides_begin_alike(const RowArgs& args) {
  return rows_begin_alike(
      args.student, args.student_stride, args.teacher, args.teacher_stride, element_bytes(args.logits_type));
}

// Calls use(whether there is a teacher, columns of a vector, the kind of call) with the constants of the kernel for a
// call with logits of type Logit. Vectors of one column are those of sides that do not begin alike.
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
      const auto use_plain = [&](auto teacher, auto divergence) {
        constexpr Divergence kDivergence = decltype(divergence)::value;
        return args.options.metrics == MetricSet::kLoss ? use(teacher, Vector(), PlainCall<kDivergence, true>())
                                                        : use(teacher, Vector(), PlainCall<kDivergence, false>());
      };
      if (args.teacher == nullptr) {
        return use_plain(std::false_type(), std::integral_constant<Divergence, Divergence::kNone>());
      }
      switch (effective_divergence(args.options)) {
        case Divergence::kJsd:
          return use_plain(std::true_type(), std::integral_constant<Divergence, Divergence::kJsd>());
        case Divergence::kForwardKl:
          return use_plain(std::true_type(), std::integral_constant<Divergence, Divergence::kForwardKl>());
        case Divergence::kReverseKl:
          return use_plain(std::true_type(), std::integral_constant<Divergence, Divergence::kReverseKl>());
        default: // not usual
          break;
      }
    }
  }
  return args.teacher == nullptr ? use(std::false_type(), Vector(), AnyCall())
                                 : use(std::true_type(), Vector(), AnyCall());
}

} // namespace distill::losses::streaming
