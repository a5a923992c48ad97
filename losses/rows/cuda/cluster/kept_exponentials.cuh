// What the modes that compute no metrics but the loss keep of a row in shared memory: in the place of the student's
// logits e = 2^x, and in the place of the teacher's y = log2(teacher / student), both as the first phase has computed
// them anyway, relative to the bases of its sums (OnlineSums). In the second phase q = e * factor and log2(p / q) = y +
// shift, with two numbers of the warp and the row: a column takes one exponential less there (with a softcap, whose
// slope needs the logit again, one logarithm more). A thread whose e are too small for that leaves the logits in a
// tile, and computes its columns there in the slow way.
#pragma once

#include "losses/rows/cuda/cluster/column_terms.cuh"
#include "losses/rows/cuda/cluster/columns.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The least e of both sides, and the least factor by its log2, with which p is computed as q r. Then q = e * factor >=
// 2^-120 is a normal number and r = p / q <= 2^120 a finite one, and y is finite.
constexpr float kLeast = 0x1p-60F;
constexpr float kLeastLog2 = -60;
constexpr float kMost = 0x1p80F; // e (OnlineSums::kRoom), before the row is kept relative to other bases

// What turns e and y of a warp's columns into probabilities of the row.
struct KeptRow {
  float factor; // q = e factor
  float log2_factor;
  float shift; // log2(p / q) = y + shift
  uint32_t logits; // a bit for each tile in which the thread has left the logits
  uint32_t slow; // those, or all tiles where the factor is too small
  float student_base; // of a row with softcaps
};

// A thread's columns in the modes that keep exponentials.
template <typename G, typename Logit, bool kTeacher, Divergence kDivergence, Mode kMode>
struct KeptExponentials {
  using RowColumns = Columns<G, Logit, kMode>;
  const RowArgs& args;
  const RowConstants<float>& c;
  const RowColumns& columns;

  // Adds a tile of logits, after softcaps, to the sums and leaves e and y in its slot; a bit of `logits` says where it
  // left the logits.
  __device__ __forceinline__ void keep(
      uint32_t place, int tile, const float (&zs)[kVector], const float (&zt)[kVector], OnlineSums& student,
      OnlineSums& teacher, uint32_t& logits) const {
    float xs[kVector];
    float e[kVector];
    student.add(zs, c, xs, e);
    if constexpr (!kTeacher) {
      write_vector(place, e, kFloats);
    } else {
      float xt[kVector];
      float et[kVector];
      teacher.add(zt, c, xt, et);
      float y[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        y[j] = xt[j] - xs[j];
      }
      float least = least_of(least_of(e[0], e[1], e[2]), least_of(e[3], et[0], et[1]), least_of(et[2], et[3], et[3]));
      if (!columns.whole(tile)) { // where there is no column both are 0, and y means nothing
        const int valid = columns.share.valid(tile);
        least = INFINITY;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          y[j] = j < valid ? y[j] : 0.0F;
          least = j < valid ? fminf(least, fminf(e[j], et[j])) : least;
        }
      }
      if (least < kLeast) {
        logits |= 1U << static_cast<unsigned>(tile);
        write_vector(place, zs, kFloats);
        write_vector(place + G::kSideBytes, zt, kFloats);
      } else {
        write_vector(place, e, kFloats);
        write_vector(place + G::kSideBytes, y, kFloats);
      }
    }
  }

  // The warp's parts of both normalisers. Where a logit is so far above its base that e may overflow, the warp keeps
  // the row again, relative to its maxima, from its logits in global memory: no gradient has been written over them.
  // With a NaN the sums are NaN, whatever the maxima.
  __device__ __forceinline__ void parts(
      int row, OnlineSums& student, OnlineSums& teacher, uint32_t& logits, SidePartial& student_part,
      SidePartial& teacher_part) const {
    float student_largest = lanes_max(student.max);
    float teacher_largest = kTeacher ? lanes_max(teacher.max) : 0.0F;
    if (fmaxf(student_largest, teacher_largest) > kMost) {
      keep_again(row, student, teacher, logits);
      student_largest = lanes_max(student.max);
      teacher_largest = kTeacher ? lanes_max(teacher.max) : 0.0F;
    }
    student_part = {max_of(student_largest, student.base), student.sum, 0, student.base};
    teacher_part = {max_of(teacher_largest, teacher.base), kTeacher ? teacher.sum : 0.0F, 0, teacher.base};
  }

  // `logits`: of keep(); the bases are those of the row's sums.
  __device__ __forceinline__ KeptRow
  row(const RowNumbers& numbers, float student_base, float teacher_base, uint32_t logits) const {
    // The same rounded product as in the sums.
    const float of_student = fmaf(-numbers.student.max, c.to_log2, student_base * c.to_log2);
    KeptRow kept{};
    kept.log2_factor = of_student - numbers.student.log2_sum;
    kept.factor = row_exp2(kept.log2_factor);
    if constexpr (kTeacher) {
      const float of_teacher = fmaf(-numbers.teacher.max, c.to_log2, teacher_base * c.to_log2);
      kept.shift = (of_teacher - of_student) - (numbers.teacher.log2_sum - numbers.student.log2_sum);
      kept.logits = logits;
      // Where a normaliser is not finite the slow way finds a probability of 0, as with all metrics.
      kept.slow = kept.log2_factor >= kLeastLog2 && kept.shift == kept.shift ? logits : ~0U;
    }
    if constexpr (kCaps<kMode>) {
      kept.student_base = student_base;
    }
    return kept;
  }

  // Whether all threads of the warp have columns with `factor` only.
  __device__ __forceinline__ static bool fast(const KeptRow& kept) {
    return __reduce_max_sync(kAllLanes, kept.slow != 0 ? 1 : 0) == 0;
  }

  struct Tile {
    float e[kVector];
    float y[kVector];
  };

  __device__ __forceinline__ void read(int tile, Tile& to) const {
    const uint32_t place = columns.place(tile);
    read_vector(place, to.e, kFloats);
    if constexpr (kTeacher) {
      read_vector(place + G::kSideBytes, to.y, kFloats);
    }
  }

  // One of the thread's columns of a tile, for its label.
  __device__ __forceinline__ ColumnResult<float> label(
      const KeptRow& kept, const RowNumbers& numbers, int tile, int at) const {
    RowSums<float> unused;
    float unused_slope = 0;
    const uint32_t address = columns.place(tile) + static_cast<uint32_t>(at) * sizeof(float);
    return slow_column(kept, numbers, tile, address, unused_slope, unused);
  }

  // The columns of a tile, added to the sums. `finish` makes of a column and its slope the two numbers that are kept.
  template <typename Finish>
  __device__ __forceinline__ void visit(
      const KeptRow& kept, const RowNumbers& numbers, int tile, const Finish& finish, RowSums<float>& sums,
      float (&first)[kVector], float (&second)[kVector]) const {
    const uint32_t place = columns.place(tile);
    if (kTeacher && (kept.slow >> static_cast<unsigned>(tile) & 1U) != 0) {
#pragma unroll 1
      for (uint32_t at = place; at < place + kVector * sizeof(float); at += sizeof(float)) {
        float a = 0;
        float q = 0;
        float slope = 1;
        const ColumnResult<float> column = slow_column(kept, numbers, tile, at, slope, sums);
        finish(column, slope, a, q);
        store_shared(at, a);
        store_shared(at + G::kSideBytes, q);
      }
      fence_before_copies();
      read_vector(place, first, kFloats);
      read_vector(place + G::kSideBytes, second, kFloats);
      return;
    }
    Tile of;
    read(tile, of);
    visit_fast(kept, of, finish, sums, first, second);
  }

  // The same where fast().
  template <typename Finish>
  __device__ __forceinline__ void visit_fast(
      const KeptRow& kept, const Tile& of, const Finish& finish, RowSums<float>& sums, float (&first)[kVector],
      float (&second)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      ColumnResult<float> column{0, q_of(of.e[j], kept), 0};
      if constexpr (kTeacher) {
        const float d = of.y[j] + kept.shift;
        const float r = row_exp2(d);
        const ColumnPair<float> pair{d, column.q * r, column.q, r};
        column.a = add<true>(pair, sums);
      }
      finish(column, kCaps<kMode> ? slope_from(row_log2(of.e[j]), kept) : 1.0F, first[j], second[j]);
    }
  }

 private:
  __device__ __forceinline__ float q_of(float e, const KeptRow& kept) const {
    const float q = e * kept.factor;
    return kTeacher ? q : fmaxf(q, 0.0F); // 0 where it is NaN: see row()
  }

  // The maximum of the logits from that of the e: near enough for a sum to be relative to it.
  __device__ __forceinline__ float max_of(float largest, float base) const {
    return largest > 0 ? fmaf(row_log2(largest), kLn2<float>, base) : -INFINITY;
  }

  __device__ __forceinline__ void keep_again(
      int row, OnlineSums& student, OnlineSums& teacher, uint32_t& logits) const {
    float student_max = -INFINITY;
    float teacher_max = -INFINITY;
    const auto for_tiles = [&](const auto& body) {
#pragma unroll 1
      for (int i = 0; i < columns.plan.tiles; ++i) {
        if (columns.exists(i)) {
          float zs[kVector];
          float zt[kVector] = {};
          columns.template from_memory<kTeacher>(row, i, zs, zt);
          body(i, zs, zt);
        }
      }
    };
    for_tiles([&](int /*tile*/, const float(&zs)[kVector], const float(&zt)[kVector]) {
      student_max = fmaxf(student_max, fmaxf(fmaxf(zs[0], zs[1]), fmaxf(zs[2], zs[3])));
      teacher_max = fmaxf(teacher_max, fmaxf(fmaxf(zt[0], zt[1]), fmaxf(zt[2], zt[3])));
    });
    student.begin(lanes_max(student_max), c);
    teacher.begin(lanes_max(teacher_max), c);
    student.max = 0;
    teacher.max = 0;
    logits = 0;
    for_tiles([&](int tile, const float(&zs)[kVector], const float(&zt)[kVector]) {
      keep(columns.place(tile), tile, zs, zt, student, teacher, logits);
    });
  }

  // Returns a.
  template <bool kBounded>
  __device__ __forceinline__ float add(const ColumnPair<float>& pair, RowSums<float>& sums) const {
    const SoftTerms<float> soft = soft_terms<kDivergence, /*kSeriesNearZero=*/false, kBounded>(pair, c);
    add_loss<kDivergence>(pair, soft, sums);
    add_kl<kDivergence>(pair, sums);
    return soft.a;
  }

  // d capped logit / d logit of the column with e = 2^x; without a teacher e may be 0, and so the gradient, whatever
  // the slope is, as long as it is finite.
  __device__ __forceinline__ float slope_from(float x, const KeptRow& kept) const {
    constexpr float kLeastX = -150;
    return slope_at(fmaf(kTeacher ? x : fmaxf(x, kLeastX), kLn2<float>, kept.student_base), c);
  }

  // The column at an address of its slot, from its logits or from log2 e, and its softcap's slope.
  __device__ __forceinline__ ColumnResult<float> slow_column(
      const KeptRow& kept, const RowNumbers& numbers, int tile, uint32_t address, float& slope,
      RowSums<float>& sums) const {
    const float first = load_shared_float(address);
    if constexpr (!kTeacher) {
      slope = kCaps<kMode> ? slope_from(row_log2(first), kept) : 1.0F;
      return {0, q_of(first, kept), 0};
    } else {
      const float second = load_shared_float(address + G::kSideBytes);
      float lq = 0;
      float lp = 0;
      if ((kept.logits >> static_cast<unsigned>(tile) & 1U) != 0) {
        lq = log2_prob(first, numbers.student, c);
        lp = log2_prob(second, numbers.teacher, c);
        slope = slope_of<kMode>(first, c);
      } else {
        const float x = row_log2(first);
        lq = row_max(x + kept.log2_factor, kLogFloor<float>);
        lp = row_max(lq + (second + kept.shift), kLogFloor<float>);
        slope = kCaps<kMode> ? slope_from(x, kept) : 1.0F;
      }
      const ColumnPair<float> pair = column_pair<kDivergence>(lp, lq);
      return {add<false>(pair, sums), pair.q, lq};
    }
  }
};

#endif

} // namespace distill::losses::cluster
