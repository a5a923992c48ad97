// Modes that compute no metrics but the loss keep exponentials of a row in shared memory: in the place of the student's
// logits e = 2^x, and in the place of the teacher's y = log2(teacher / student), both as the first phase has computed
// them anyway, relative to the bases of its sums (OnlineSums). In the second phase q = e * factor and log2(p / q) = y +
// shift, with two numbers of the warp and the row: a column takes one exponential less there (with a softcap, whose
// slope needs the logit again, one logarithm more). Sums and gradients are computed from e as it is, and the factor
// comes into the row's sums and into the factors of its gradient. A thread whose e are too small for that leaves x of
// both sides in a tile, and computes its columns there in the slow way.
#pragma once

#include "losses/rows/cuda/cluster/column_terms.cuh"
#include "losses/rows/cuda/cluster/columns.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// p is computed as q r only from these least e of both sides and least log2 of a factor on. Then q = e * factor >=
// 2^-120 is a normal number and r = p / q <= 2^120 a finite one, and y is finite. Reverse KL's a is 1e30 where the
// teacher rules out a column, and its sum of e a, with e <= 1 / factor, must stay finite.
constexpr float kLeast = 0x1p-60F;
template <Divergence kDivergence>
inline constexpr float kLeastLog2 = kDivergence == Divergence::kReverseKl ? -26 : -60;
constexpr float kMost = 0x1p80F; // a thread's sum of e above it (OnlineSums::kRoom) makes the row relative to others

// With a KeptRow, e and y of a warp's columns become probabilities of the row.
struct KeptRow {
  float unit = 1; // q = unit * what is kept of it: the factor, or 1 where that is too small
  // These shifts are for log2 of q and p in units: x of the student + student_shift, x of the teacher + shift. Where
  // the factor is the unit, student_shift is 0 and log2(p / q) = y + shift.
  float student_shift = 0;
  float shift = 0;
  uint32_t exponents = 0; // a bit for each tile in which the thread has left x of both sides
  uint32_t slow = 0; // the same tiles, or all tiles where the factor is too small
  float student_base = 0; // only in a row with softcaps

  // These functions change sums of columns, and factors of their gradients, of numbers that are kept in units.
  __device__ __forceinline__ void finish(RowSums<float>& sums) const {
    sums.loss *= unit;
    sums.q_a *= unit;
    sums.p_d *= unit;
    sums.q_d *= unit;
    sums.mass *= unit;
  }

  __device__ __forceinline__ RowFactors<float> of_units(RowFactors<float> factors) const {
    factors.soft *= unit;
    factors.hard *= unit;
    return factors;
  }
};

// A KeptExponentials has a thread's columns in the modes that keep exponentials.
template <typename G, typename Logit, bool kTeacher, Divergence kDivergence, Mode kMode>
struct KeptExponentials {
  using RowColumns = Columns<G, Logit, kMode>;
  const RowArgs& args;
  const RowConstants<float>& c;
  const RowColumns& columns;

  // Chooses bases for the sums of a row, from its first tile.
  __device__ __forceinline__ void begin(
      const float (&zs)[kVector], const float (&zt)[kVector], OnlineSums& student, OnlineSums& teacher) const {
    begin(lanes_max(largest_of(zs)), kTeacher ? lanes_max(largest_of(zt)) : 0.0F, student, teacher);
  }

  // Adds a tile of logits, as they are read, to the sums and leaves e and y in its slot; a bit of `exponents` says
  // where it left x of both sides.
  __device__ __forceinline__ void keep(
      uint32_t place, int tile, const float (&zs)[kVector], const float (&zt)[kVector], OnlineSums& student,
      OnlineSums& teacher, uint32_t& exponents) const {
    float xs[kVector];
    float xt[kVector];
    float e[kVector];
    to_exponents(tile, zs, zt, student, teacher, xs, xt);
    student.add_exponentials(xs, e);
    if constexpr (!kTeacher) {
      write_vector(place, e, kFloats);
    } else {
      float et[kVector];
      teacher.add_exponentials(xt, et);
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
        exponents |= 1U << static_cast<unsigned>(tile);
        write_vector(place, xs, kFloats);
        write_vector(place + G::kSideBytes, xt, kFloats);
      } else {
        write_vector(place, e, kFloats);
        write_vector(place + G::kSideBytes, y, kFloats);
      }
    }
  }

  // Makes the warp's parts of both normalisers. Where a logit is so far above its base that e may overflow, it keeps
  // the row again, relative to its maxima, from its logits in global memory: no gradient has been written over them.
  // With a NaN the sums are NaN, whatever they are relative to.
  __device__ __forceinline__ void parts(
      int row, OnlineSums& student, OnlineSums& teacher, uint32_t& exponents, SidePartial& student_part,
      SidePartial& teacher_part) const {
    float student_largest = lanes_max(student.sum);
    float teacher_largest = kTeacher ? lanes_max(teacher.sum) : 0.0F;
    if (fmaxf(student_largest, teacher_largest) > kMost) {
      keep_again(row, student, teacher, exponents);
      student_largest = lanes_max(student.sum);
      teacher_largest = kTeacher ? lanes_max(teacher.sum) : 0.0F;
    }
    student_part = {reference(student_largest, student.base), student.sum, 0, student.base};
    teacher_part = {reference(teacher_largest, teacher.base), kTeacher ? teacher.sum : 0.0F, 0, teacher.base};
  }

  // Returns the numbers of a row. `exponents`: from keep(); the bases are those of the row's sums.
  __device__ __forceinline__ KeptRow
  row(const RowNumbers& numbers, float student_base, float teacher_base, uint32_t exponents) const {
    // This is the same rounded product as in the sums.
    const float of_student = fmaf(-numbers.student.max, c.to_log2, student_base * c.to_log2);
    const float log2_factor = of_student - numbers.student.log2_sum;
    KeptRow kept;
    if constexpr (!kTeacher) {
      kept.unit = fmaxf(row_exp2(log2_factor), 0.0F); // 0 where it is NaN
    } else {
      const float of_teacher = fmaf(-numbers.teacher.max, c.to_log2, teacher_base * c.to_log2);
      const float shift = (of_teacher - of_student) - (numbers.teacher.log2_sum - numbers.student.log2_sum);
      kept.exponents = exponents;
      // Where a normaliser is not finite the slow way finds a probability of 0, as with all metrics.
      const bool fits = log2_factor >= kLeastLog2<kDivergence> && fabsf(shift) < INFINITY;
      kept.unit = fits ? row_exp2(log2_factor) : 1.0F;
      kept.student_shift = fits ? 0.0F : log2_factor;
      kept.shift = fits ? shift : of_teacher - numbers.teacher.log2_sum;
      kept.slow = fits ? exponents : ~0U;
    }
    if constexpr (kCaps<kMode>) {
      kept.student_base = student_base;
    }
    return kept;
  }

  // Returns whether no thread of the warp has slow tiles.
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

  // Computes one of the thread's columns of a tile, for its label.
  __device__ __forceinline__ ColumnResult<float> label(
      const KeptRow& kept, const RowConstants<float>& held, int tile, int at) const {
    RowSums<float> unused;
    float unused_slope = 0;
    const uint32_t address = columns.place(tile) + static_cast<uint32_t>(at) * sizeof(float);
    return slow_column(kept, held, tile, address, unused_slope, unused);
  }

  // Adds the columns of a tile to the sums. `finish` makes of a column and its slope the two numbers that are kept.
  template <typename Finish>
  __device__ __forceinline__ void visit(
      const KeptRow& kept, const RowConstants<float>& held, int tile, const Finish& finish, RowSums<float>& sums,
      float (&first)[kVector], float (&second)[kVector]) const {
    const uint32_t place = columns.place(tile);
    if (kTeacher && (kept.slow >> static_cast<unsigned>(tile) & 1U) != 0) {
#pragma unroll 1
      for (uint32_t at = place; at < place + kVector * sizeof(float); at += sizeof(float)) {
        float a = 0;
        float q = 0;
        float slope = 1;
        const ColumnResult<float> column = slow_column(kept, held, tile, at, slope, sums);
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
    visit_fast(kept, held, of, finish, sums, first, second);
  }

  // Does the same where fast() holds.
  template <typename Finish>
  __device__ __forceinline__ void visit_fast(
      const KeptRow& kept, const RowConstants<float>& held, const Tile& of, const Finish& finish, RowSums<float>& sums,
      float (&first)[kVector], float (&second)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      ColumnResult<float> column{0, not_nan(of.e[j]), 0};
      if constexpr (kTeacher) {
        const float d = of.y[j] + kept.shift;
        const float r = row_exp2(d);
        const ColumnPair<float> pair{d, column.q * r, column.q, r};
        column.a = add<true>(pair, held, sums);
      }
      finish(column, kCaps<kMode> ? finite_slope(row_log2(of.e[j]), kept) : 1.0F, first[j], second[j]);
    }
  }

 private:
  // Without a teacher a NaN becomes 0 here; the factors of the row hold it.
  __device__ __forceinline__ static float not_nan(float e) {
    return kTeacher ? e : fmaxf(e, 0.0F);
  }

  // Returns a logit that is not far from the log-sum-exp of a lane, from the largest sum of the lanes.
  __device__ __forceinline__ static float reference(float largest, float base) {
    return largest > 0 ? fmaf(row_log2(largest), kLn2<float>, base) : -INFINITY;
  }

  // Finds the largest logits, as they are read.
  __device__ __forceinline__ void begin(
      float student_largest, float teacher_largest, OnlineSums& student, OnlineSums& teacher) const {
    if constexpr (kCaps<kMode>) {
      student_largest = student_softcap(c).of_any(student_largest);
      teacher_largest = kTeacher ? teacher_softcap(c).of_any(teacher_largest) : 0.0F;
    }
    student.begin(student_largest, c);
    if constexpr (kTeacher) {
      teacher.begin(teacher_largest, c);
    }
  }

  // Returns the logits after softcaps, in base 2 and relative to the bases; -inf where there is no column.
  __device__ __forceinline__ void to_exponents(
      int tile, const float (&zs)[kVector], const float (&zt)[kVector], const OnlineSums& student,
      const OnlineSums& teacher, float (&xs)[kVector], float (&xt)[kVector]) const {
    if constexpr (kCaps<kMode>) {
      softcap_exponents<kTeacher>(c, zs, zt, student.scaled, teacher.scaled, xs, xt);
      if (!columns.whole(tile)) {
        columns.mask(tile, xs);
        if constexpr (kTeacher) {
          columns.mask(tile, xt);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        xs[j] = fmaf(zs[j], c.to_log2, -student.scaled);
        xt[j] = kTeacher ? fmaf(zt[j], c.to_log2, -teacher.scaled) : 0.0F;
      }
    }
  }

  __device__ __forceinline__ void keep_again(
      int row, OnlineSums& student, OnlineSums& teacher, uint32_t& exponents) const {
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
      student_max = fmaxf(student_max, largest_of(zs));
      teacher_max = fmaxf(teacher_max, largest_of(zt));
    });
    begin(lanes_max(student_max), lanes_max(teacher_max), student, teacher);
    exponents = 0;
    for_tiles([&](int tile, const float(&zs)[kVector], const float(&zt)[kVector]) {
      keep(columns.place(tile), tile, zs, zt, student, teacher, exponents);
    });
  }

  // Adds a column to the sums and returns its a.
  template <bool kBounded>
  __device__ __forceinline__ float add(
      const ColumnPair<float>& pair, const RowConstants<float>& held, RowSums<float>& sums) const {
    const SoftTerms<float> soft = soft_terms<kDivergence, /*kSeriesNearZero=*/false, kBounded>(pair, held);
    add_loss<kDivergence>(pair, soft, sums);
    add_kl<kDivergence>(pair, sums);
    return soft.a;
  }

  // Returns d capped logit / d logit for e = 2^x. Without a teacher e may be 0, and so the gradient, whatever
  // the slope is, as long as it is finite.
  __device__ __forceinline__ float finite_slope(float x, const KeptRow& kept) const {
    constexpr float kLeastX = -150;
    return finite_slope_at(fmaf(kTeacher ? x : fmaxf(x, kLeastX), kLn2<float>, kept.student_base), c);
  }

  // Reads the column at an address of its slot, from x of both sides or from log2 e and y, and its softcap's slope.
  __device__ __forceinline__ ColumnResult<float> slow_column(
      const KeptRow& kept, const RowConstants<float>& held, int tile, uint32_t address, float& slope,
      RowSums<float>& sums) const {
    const float first = load_shared_float(address);
    if constexpr (!kTeacher) {
      slope = kCaps<kMode> ? finite_slope(row_log2(first), kept) : 1.0F;
      return {0, not_nan(first), 0};
    } else {
      const float second = load_shared_float(address + G::kSideBytes);
      const bool exponents = (kept.exponents >> static_cast<unsigned>(tile) & 1U) != 0;
      const float x = exponents ? first : row_log2(first);
      const float of_teacher = exponents ? second : x + second;
      const float lq = row_max(x + kept.student_shift, kLogFloor<float>);
      const float lp = row_max(of_teacher + kept.shift, kLogFloor<float>);
      slope = kCaps<kMode> ? finite_slope(x, kept) : 1.0F;
      const ColumnPair<float> pair = column_pair<kDivergence>(lp, lq);
      return {add<false>(pair, held, sums), pair.q, lq};
    }
  }
};

#endif

} // namespace distill::losses::cluster
