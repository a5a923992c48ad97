// The streaming row kernel is for any type and alignment, up to 2^30 columns, and any device. A row is spread over the
// blocks of a cluster, or has one block where the device has no clusters. It is read for its normalisers, for its sums,
// where the gradient needs the mean of a, once more for its gradient; other gradients (forward KL, cross-entropy) are
// written with the second reading. A block's shared memory holds the columns that were read last, with which the next
// pass begins (columns.cuh); how many blocks a row has (choose_blocks.h) is such that the L2 cache holds the others.
#pragma once

#include "losses/rows/cuda/streaming/columns.cuh"
#include "losses/rows/cuda/streaming/merger.cuh"
#include "losses/rows/cuda/streaming/terms.cuh"
#include "losses/rows/row_metrics.h"

namespace distill::losses::streaming {

// args: see RowArgs, logits of type Logit; a cluster of plan.blocks blocks takes one row. Call: AnyCall or PlainCall.
// Dynamic shared memory: partials_bytes() and plan.slots times Geometry::kGroupBytes.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
__global__
__launch_bounds__(Geometry<T, kTeacher, Call>::kThreads, Geometry<T, kTeacher, Call>::kBlocksAtOnce) void rows(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<T> c,
    const __grid_constant__ Plan plan) {
  using RowColumns = Columns<T, Logit, kTeacher, kVector, Call>;
  using RowTerms = typename TermsOf<T, kTeacher, Call>::Type;
  using Terms = ColumnResult<T>[RowColumns::kCount];
  using Row = typename RowColumns::Row;
  constexpr bool kKeepsTerms = Call::kPlain; // a and q take the place of the logits from the second pass on
  unsigned char* const memory = launched_memory();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int blocks = plan.blocks;
  const int64_t n = blockIdx.x / static_cast<unsigned>(blocks);
  const int rank = static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks));
  const int writer = blocks - 1; // the rank that writes the metrics: no block has fewer columns
  const RowColumns columns(args, c, plan, rank, memory + partials_bytes<T, Call>());
  const Row row = columns.row_at(n);
  columns.copy_first(row); // before anything is known of the label, which takes as long to load
  T* out = static_cast<T*>(args.metrics) + n;
  const bool has_label = args.targets != nullptr;
  const int64_t label = has_label ? args.targets[n] : 0;
  if (has_label && label == kIgnoreIndex) {
    if (rank == writer && threadIdx.x == 0) {
      zero_metrics(out, args.metrics_stride);
    }
    wait_for_copies<0>(); // so that none reads zeros, or ends in the shared memory of a later block
    columns.write_zeros(row);
    return;
  }
  const int target = static_cast<int>(label);
  // Read before any gradient is written, since the gradient may overwrite the logits.
  const T label_logit = has_label ? columns.student_logit(row, target) : T(0);
  const T teacher_label_logit = kTeacher && has_label ? columns.teacher_logit(row, target) : T(0);
  const T weight = args.token_weights == nullptr ? T(1) : static_cast<const T*>(args.token_weights)[n];
  const bool has_gradient = args.gradient != nullptr && weight != 0; // one that is not 0
  const bool needs_mean = columns.with_divergence([](auto divergence) { return kUsesQa<decltype(divergence)::value>; });
  const Merger<T, kTeacher, Call> merger{*reinterpret_cast<Partials<T, Call>*>(memory), c, blocks, rank, warp, lane};
  merger.expect_parts();
  int place = 0; // in the ring of slots

  // The first pass finds the normalisers.
  SideStats<T> stats[2];
  {
    typename RowTerms::Running running(c);
    columns.template for_each<1>(
        row, place, false, [&](const auto& zs, const auto& zt, const auto& /*at*/) { running.add(zs, zt); });
    const SideSums<T> mine[2] = {running.student_sums(), running.teacher_sums()};
    merger.share_sides(mine, stats);
  }
  const SideStats<T>& student = stats[0];
  const SideStats<T>& teacher = stats[1];
  const RowTerms of_row{c, student, teacher};
  const RowFactors<T> factors = of_row.factors(row_factors(c, student, teacher, weight));

  // Returns a column's gradient without the label's part.
  const auto gradient_of = [&](auto divergence, T z, const ColumnResult<T>& x, T mean) {
    constexpr Divergence kDivergence = decltype(divergence)::value;
    if constexpr (Call::kPlain) {
      return unit_gradient<kDivergence>(x.a, x.q, mean, factors);
    } else {
      const T unit_q = c.unit_temperature ? x.q : unit_prob(z, student);
      return general_gradient<kDivergence>(x.a, x.q, unit_q, label_slope(z, c), mean, factors);
    }
  };
  const auto write_gradient = [&](auto divergence, const auto& zs, const Terms& terms, T mean, int first) {
    T gradient[RowColumns::kCount];
    for_columns(zs, [&](int k) { gradient[k] = gradient_of(divergence, zs[k], terms[k], mean); });
    columns.write(row, gradient, first);
  };
  // Writes the label's column once more, by the thread that has written it.
  const auto write_label = [&](auto divergence, T mean) {
    if (has_label && columns.has(row, target)) {
      const T zs[1] = {label_logit};
      const T zt[1] = {teacher_label_logit};
      ColumnResult<T> x[1];
      of_row.template again<decltype(divergence)::value>(zs, zt, x);
      const T of_label = factors.label * label_slope(label_logit, c);
      store_as(row.gradient, target, args.gradient_type, gradient_of(divergence, label_logit, x[0], mean) - of_label);
    }
  };

  // The second pass finds the sums over the columns and the first columns with the maxima, and writes the gradient that
  {
    RowSums<T> mine;
    int best[2] = {INT32_MAX, INT32_MAX};
    columns.template for_each<2>(row, place, !needs_mean, [&](const auto& zs, const auto& zt, const auto& at) {
      columns.with_divergence([&](auto divergence) {
        constexpr Divergence kDivergence = decltype(divergence)::value;
        Terms terms;
        of_row.template add<kDivergence>(zs, zt, mine, terms);
        if constexpr (!kUsesQa<kDivergence>) {
          if (has_gradient) {
            write_gradient(divergence, zs, terms, T(0), at.first);
          }
        } else if constexpr (kKeepsTerms && std::decay_t<decltype(at)>::kStays) {
          columns.keep_terms(at.place, terms);
        }
      });
      if (!Call::kPlain && c.label_smoothing > 0) {
        for_columns(zs, [&](int k) {
          mine.below_max += columns.exists(columns.index(at.first, k)) ? student.max - zs[k] : T(0);
        });
      }
      if (!Call::kLossAlone && c.all_metrics) {
        columns.find_max(zs, student.max, at.first, best[0]);
        if constexpr (kTeacher) {
          columns.find_max(zt, teacher.max, at.first, best[1]);
        }
      }
    });
    if (has_gradient && !needs_mean) {
      columns.with_divergence([&](auto divergence) { write_label(divergence, T(0)); });
    }
    merger.share_sums(mine, best);
  }

  // A warp that does not merge the block's parts writes the metrics.
  if (rank == writer && warp == merger.kWarps - 1) {
    const RowSums<T> sums = merger.row_sums();
    RowEpilogue<T> end;
    end.student_best = merger.row_best(0);
    end.teacher_best = merger.row_best(1);
    if (lane == 0) {
      end.has_teacher = kTeacher;
      end.has_label = has_label;
      end.label = target;
      end.label_logit = label_logit;
      end.token_weight = weight;
      end.vocab = args.vocab;
      end.saved = args.saved == nullptr ? nullptr : static_cast<T*>(args.saved) + n;
      finish_row(out, args.metrics_stride, c, student, teacher, of_row.finished(sums), end);
      out[kTeacherCe * args.metrics_stride] =
          kTeacher && has_label ? teacher_ce(c, student, teacher, teacher_label_logit) : T(0);
    }
  }

  // The third pass writes the gradient that needs the mean.
  if (has_gradient && needs_mean) {
    columns.with_divergence([&](auto divergence) {
      constexpr Divergence kDivergence = decltype(divergence)::value;
      if constexpr (kUsesQa<kDivergence>) {
        const T sum_q = kDivergence == Divergence::kSkewForwardKl ? merger.row_q() : T(1);
        const T mean = mean_a<kDivergence>(of_row.finished_qa(merger.row_qa()), sum_q);
        columns.template for_each<3>(row, place, true, [&](const auto& zs, const auto& zt, const auto& at) {
          Terms terms;
          if constexpr (kKeepsTerms && std::decay_t<decltype(at)>::kWasThere) {
            columns.take_terms(zs, zt, terms);
          } else {
            of_row.template again<kDivergence>(zs, zt, terms);
          }
          write_gradient(divergence, zs, terms, mean, at.first);
        });
        write_label(divergence, mean);
      }
    });
  } else if (!has_gradient) {
    columns.write_zeros(row); // after the last reading, since the gradient may overwrite the logits
  }
}

} // namespace distill::losses::streaming
