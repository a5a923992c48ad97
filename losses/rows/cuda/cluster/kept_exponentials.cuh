// What the modes that compute no metrics but the loss keep of a row in shared memory: in the place of the student's
// logits e = 2^x, and in the place of the teacher's y = log2(teacher / student), both as the first phase has computed
// them anyway, relative to the bases of its sums (OnlineSums). In the second phase q = e * factor and log2(p / q) = y +
// shift, with two numbers of the warp and the row, so that a column takes one exponential and one logarithm there
// instead of two and one, and none where there is no teacher. A thread whose e are too small for that leaves the
// logits in a tile, and computes its columns there in the slow way.
#pragma once

#include "losses/rows/cuda/cluster/columns.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// log2 of the least e, and of the least factor, with which p may be computed as q * r: their product stays above the
// smallest normal number.
constexpr float kLeastLog2 = -60;
constexpr float kLeast = 0x1p-60F;

// What turns e and y of a warp's columns into probabilities of the row.
struct KeptRow {
  float factor; // q = e factor
  float log2_factor;
  float shift; // log2(p / q) = y + shift
  uint32_t logits; // a bit for each tile in which the thread has left the logits
  uint32_t slow; // those, or all tiles where the factor is too small
  float student_base; // of a row with softcaps
};

struct KeptColumn {
  float a;
  float q;
  float slope; // of the softcap
};

// A thread's columns in the modes that keep exponentials.
template <typename G, typename Logit, bool kTeacher, Divergence kDivergence, Mode kMode>
struct KeptExponentials {
  using RowColumns = Columns<G, Logit, kMode>;
  const RowArgs& args;
  const RowConstants<float>& c;
  const RowColumns& columns;

  // Adds a tile of logits, after softcaps, to the sums and leaves e and y in its slot; a bit of `slow` says where it
  // left the logits.
  __device__ __forceinline__ void keep(
      uint32_t place, int tile, const float (&zs)[kVector], const float (&zt)[kVector], OnlineSums& student,
      OnlineSums& teacher, uint32_t& slow) const {
    float xs[kVector];
    float e[kVector];
    student.add(zs, c, xs, e);
    if constexpr (!kTeacher) {
      write(place, e);
    } else {
      float xt[kVector];
      float unused[kVector];
      teacher.add(zt, c, xt, unused);
      float y[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        y[j] = row_max(xt[j] - xs[j], kLogFloor<float>);
      }
      float least = fminf(fminf(e[0], e[1]), fminf(e[2], e[3]));
      if (!columns.whole(tile)) { // where there is no column e is 0, and y would be infinite
        const int valid = columns.share.valid(tile);
        least = INFINITY;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          y[j] = j < valid ? y[j] : 0.0F;
          least = j < valid ? fminf(least, e[j]) : least;
        }
      }
      if (least < kLeast) {
        slow |= 1U << static_cast<unsigned>(tile);
        write(place, zs);
        write(place + G::kSideBytes, zt);
      } else {
        write(place, e);
        write(place + G::kSideBytes, y);
      }
    }
  }

  // The warp's parts of both normalisers. Where a logit is so far above its base that e may overflow, the warp keeps
  // the row again, relative to its maxima, from its logits in global memory: no gradient has been written over them.
  __device__ __forceinline__ void parts(
      int row, OnlineSums& student, OnlineSums& teacher, uint32_t& slow, SidePartial& student_part,
      SidePartial& teacher_part) const {
    const float student_max = lanes_max(student.max);
    const float teacher_max = kTeacher ? lanes_max(teacher.max) : -INFINITY;
    float above = student_max - student.base;
    if constexpr (kTeacher) {
      above = fmaxf(above, teacher_max - teacher.base);
    }
    if (above * c.to_log2 > OnlineSums::kRoom) {
      student = {student.max, fmaxf(student_max, -1e30F), 0, 0};
      teacher = {teacher.max, fmaxf(teacher_max, -1e30F), 0, 0};
      slow = 0;
#pragma unroll 1
      for (int i = 0; i < columns.plan.tiles; ++i) {
        if (columns.exists(i)) {
          float zs[kVector];
          float zt[kVector] = {};
          columns.template from_memory<kTeacher>(row, i, zs, zt);
          keep(columns.place(i), i, zs, zt, student, teacher, slow);
        }
      }
    }
    student_part = {student_max, student.sum, 0, student.base};
    teacher_part = {teacher_max, kTeacher ? teacher.sum : 0.0F, 0, teacher.base};
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
      kept.slow = kept.log2_factor < kLeastLog2 ? ~0U : logits;
    }
    if constexpr (kCaps<kMode>) {
      kept.student_base = student_base;
    }
    return kept;
  }

  // One of the thread's columns of a tile, for its label; see visit().
  __device__ __forceinline__ KeptColumn label(const KeptRow& kept, const RowNumbers& numbers, int tile, int at) const {
    RowSums<float> unused;
    return slow_column(kept, numbers, tile, columns.place(tile) + static_cast<uint32_t>(at) * sizeof(float), unused);
  }

  // The columns of a tile, added to the sums. `finish` makes of a KeptColumn the two numbers that are kept of it.
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
        finish(slow_column(kept, numbers, tile, at, sums), a, q);
        store_shared(at, a);
        store_shared(at + G::kSideBytes, q);
      }
      read_vector(place, first, static_cast<const float*>(nullptr));
      read_vector(place + G::kSideBytes, second, static_cast<const float*>(nullptr));
      return;
    }
    float e[kVector];
    float y[kVector] = {};
    read_vector(place, e, static_cast<const float*>(nullptr));
    if constexpr (kTeacher) {
      read_vector(place + G::kSideBytes, y, static_cast<const float*>(nullptr));
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      KeptColumn column{0, e[j] * kept.factor, 1};
      if constexpr (kTeacher) {
        const float d = y[j] + kept.shift;
        const float r = row_exp2(d);
        const ColumnPair<float> pair{d, column.q * r, column.q, r};
        column.a = add<true>(pair, sums);
      }
      if constexpr (kCaps<kMode>) {
        column.slope = slope_of(row_log2(e[j]), kept);
      }
      finish(column, first[j], second[j]);
    }
  }

 private:
  __device__ __forceinline__ static void write(uint32_t address, const float (&v)[kVector]) {
    store_shared_before_fence(address, make_float4(v[0], v[1], v[2], v[3]));
  }

  // Returns a.
  template <bool kBounded>
  __device__ __forceinline__ float add(const ColumnPair<float>& pair, RowSums<float>& sums) const {
    const SoftTerms<float> soft = soft_terms<kDivergence, /*kSeriesNearZero=*/false, kBounded>(pair, c);
    add_loss<kDivergence>(pair, soft, sums);
    add_kl<kDivergence>(pair, sums);
    return soft.a;
  }

  // d capped logit / d logit of the column with e = 2^x.
  __device__ __forceinline__ float slope_of(float x, const KeptRow& kept) const {
    return slope_at(fmaf(x, kLn2<float>, kept.student_base), c);
  }

  // The column at an address of its slot, from its logits or from log2 e.
  __device__ __forceinline__ KeptColumn
  slow_column(const KeptRow& kept, const RowNumbers& numbers, int tile, uint32_t address, RowSums<float>& sums) const {
    const float first = load_shared_float(address);
    if constexpr (!kTeacher) {
      return {0, first * kept.factor, kCaps<kMode> ? slope_of(row_log2(first), kept) : 1.0F};
    } else {
      const float second = load_shared_float(address + G::kSideBytes);
      float lq = 0;
      float lp = 0;
      float slope = 1;
      if ((kept.logits >> static_cast<unsigned>(tile) & 1U) != 0) {
        lq = log2_prob(first, numbers.student, c);
        lp = log2_prob(second, numbers.teacher, c);
        slope = kCaps<kMode> ? slope_at(first, c) : 1.0F;
      } else {
        const float x = row_log2(first);
        lq = row_max(x + kept.log2_factor, kLogFloor<float>);
        lp = row_max(lq + (second + kept.shift), kLogFloor<float>);
        slope = kCaps<kMode> ? slope_of(x, kept) : 1.0F;
      }
      const ColumnPair<float> pair = column_pair<kDivergence>(lp, lq);
      return {add<false>(pair, sums), pair.q, slope};
    }
  }
};

#endif

} // namespace distill::losses::cluster
