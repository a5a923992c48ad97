// This file makes the passes over a thread's columns of a row in the streaming row kernel, and writes their gradient.
#pragma once

#include <type_traits>

#include "losses/rows/cuda/streaming/running_sums.cuh"
#include "losses/rows/cuda/streaming/slots.cuh"

namespace distill::losses::streaming {

template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
struct Columns : Slots<T, Logit, kTeacher, kVector, Call> {
  using S = Slots<T, Logit, kTeacher, kVector, Call>;
  using G = typename S::G;
  using Row = typename S::Row;
  using S::args;
  using S::exists;
  using S::index;
  using S::kCount;
  // Returns whether a bias, a softcap or the conversion to T may change a logit, so that it is stored again.
  static constexpr bool kChanges = !Call::kPlain || sizeof(T) != sizeof(Logit);

  // A pass visits groups. The two constants are for plain calls only; in others both are false.
  template <bool kThere, bool kStay>
  struct Group {
    static constexpr bool kWasThere = kThere; // since the pass before
    static constexpr bool kStays = kStay; // for the pass after
    int first; // column
    int place; // in the thread's shared memory, in bytes
  };

  const RowConstants<T>& c;

  __device__ Columns(const RowArgs& args, const RowConstants<T>& c, const Plan& plan, int rank, unsigned char* shared)
      : S(args, plan, rank, shared), c(c) {}

  // Calls body(two numbers of each column, group) for each group of the row: the logits of student and teacher, or the
  // numbers that keep() has put in their place in the pass before. Columns that do not exist are -inf.
  //
  // Odd passes take the groups upwards, the others downwards, so that the last groups of a pass, as many as there are
  // slots, are the first ones of the next. place: the slot at which the pass begins, and then the next one. last: there
  // is no next one.
  template <int kPass, typename Body>
  __device__ __forceinline__ void for_each(const Row& row, int& place, bool last, const Body& body) const {
    const int copied = max(row.groups - this->slots, 0); // groups whose copies this pass begins
    Cursor at{
        .first = kPass % 2 == 1 ? row.begin : row.begin + (row.groups - 1) * this->step,
        .place = place,
        .left = row.groups};
    const int there = kPass == 1 ? 0 : row.groups - copied;
    if constexpr (Call::kPlain) {
      run<kPass, true, true>(row, at, place, min(there, copied), last, body);
      run<kPass, true, false>(row, at, place, there - copied, last, body);
      run<kPass, false, true>(row, at, place, copied - there, last, body);
      run<kPass, false, false>(row, at, place, row.groups - max(there, copied), last, body);
    } else { // this is not unrolled, since a body has every divergence
#pragma unroll 1
      for (int n = 0; n < row.groups; ++n) {
        visit<kPass>(row, at, place, n < there, n < copied, last, body);
      }
    }
  }

  // Keeps `best` or, where it is smaller, the first column of a group whose logit is the row's maximum.
  __device__ __forceinline__ void find_max(const T (&z)[kCount], T row_maximum, int first, int& best) const {
    if (largest_of(z) == row_maximum) {
      for_columns(z, [&](int k) { best = z[k] == row_maximum ? min(best, index(first, k)) : best; });
    }
  }

  __device__ __forceinline__ T student_logit(const Row& row, int column) const {
    return finished(row.student[column], column, args.student_bias, c.student_softcap);
  }

  __device__ __forceinline__ T teacher_logit(const Row& row, int column) const {
    return finished(row.teacher[column], column, args.teacher_bias, c.teacher_softcap);
  }

  // Calls body(the divergence as an integral constant).
  template <typename Body>
  __device__ __forceinline__ auto with_divergence(const Body& body) const {
    if constexpr (Call::kPlain) {
      return body(std::integral_constant<Divergence, Call::kDivergence>());
    } else if constexpr (kTeacher) {
      return losses::with_divergence(c.divergence, body);
    } else {
      return body(std::integral_constant<Divergence, Divergence::kNone>());
    }
  }

  // Puts -a and q of a group in the place of its logits: JSD computes -a.
  __device__ __forceinline__ void keep_terms(int place, const ColumnResult<T> (&terms)[kCount]) const {
    T a[kCount];
    T q[kCount];
    for_columns(a, [&](int k) {
      a[k] = -terms[k].a;
      q[k] = terms[k].q;
    });
    this->keep(place, a, q);
  }

  // Reads the numbers of keep_terms() as for_each() hands them over.
  __device__ __forceinline__ static void take_terms(
      const T (&zs)[kCount], const T (&zt)[kCount], ColumnResult<T> (&terms)[kCount]) {
    for_columns(zs, [&](int k) { terms[k] = {-zs[k], zt[k], T(0)}; });
  }

  // Writes the gradient of the group that begins at column `first`.
  __device__ __forceinline__ void write(const Row& row, const T (&values)[kCount], int first) const {
    switch (args.gradient_type) {
      case ElementType::kFloat32:
        return write_as<float>(row, values, first);
      case ElementType::kBFloat16:
        return write_as<__nv_bfloat16>(row, values, first);
      case ElementType::kFloat64:
        return write_as<double>(row, values, first);
    }
  }

  __device__ __forceinline__ void write_zeros(const Row& row) const {
    const T zeros[kCount] = {};
    int first = row.begin;
#pragma unroll 1
    for (int left = args.gradient == nullptr ? 0 : row.groups; left > 0; --left, first += this->step) {
      write(row, zeros, first);
    }
  }

 private:
  struct Cursor {
    int first; // the first column of the group that is next in the pass
    int place;
    int left; // groups
  };

  // A walk has the next `count` groups of a pass, or none where that is negative.
  template <int kPass, bool kThere, bool kCopies, typename Body>
  __device__ __forceinline__ void run(
      const Row& row, Cursor& at, int& place, int count, bool last, const Body& body) const {
    if constexpr (kPass > 1 || !kThere) {
#pragma unroll 1
      for (; count > 0; --count) {
        visit<kPass>(row, at, place, std::bool_constant<kThere>(), std::bool_constant<kCopies>(), last, body);
      }
    }
  }

  // Visits the next group of a pass. there: it is in its slot since the pass before. copies: another group takes its
  // slot afterwards. std::true_type or std::false_type in plain calls, and bool in others.
  template <int kPass, typename There, typename Copies, typename Body>
  __device__ __forceinline__ void visit(
      const Row& row, Cursor& at, int& place, There there, Copies copies, bool last, const Body& body) const {
    constexpr bool kUp = kPass % 2 == 1;
    constexpr bool kWasThere = std::is_same_v<There, std::true_type>;
    constexpr bool kStays = std::is_same_v<Copies, std::false_type> && kPass < 3;
    const int by = kUp ? this->step : -this->step;
    T zs[kCount];
    T zt[kCount] = {};
    if (there) {
      this->take(at.place, zs, zt);
    } else {
      this->wait();
      logits(at, zs, zt);
      if (kChanges && !copies && !last && (kPass == 1 || !Call::kPlain)) {
        this->keep(at.place, zs, zt);
      }
    }
    body(zs, zt, Group<kWasThere, kStays>{at.first, at.place});
    if (copies) {
      this->copy(row, at.first + this->slots * by, at.place, last || at.left <= 2 * this->slots);
    } else {
      commit_copies(); // wait() counts one for each group
    }
    place = at.place;
    at = {at.first + by, this->template next<kUp>(at.place), at.left - 1};
  }

  template <typename Element>
  __device__ __forceinline__ void write_as(const Row& row, const T (&values)[kCount], int first) const {
    auto* to = reinterpret_cast<Element*>(row.gradient) + first;
    if (S::is_below(first, row.vectors_below)) {
#pragma unroll
      for (int v = 0; v < G::kVectors; ++v) {
        typename S::template Vector<Element, G::kColumns> out;
#pragma unroll
        for (int k = 0; k < G::kColumns; ++k) {
          out.values[k] = static_cast<Element>(values[v * G::kColumns + k]);
        }
        store_streaming(to + v * G::kVectorStep, out);
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (exists(index(first, k))) {
        to[index(0, k)] = static_cast<Element>(values[k]);
      }
    }
  }

  // Reads the logits of a group that has been copied, after bias and softcap.
  __device__ __forceinline__ void logits(const Cursor& at, T (&zs)[kCount], T (&zt)[kCount]) const {
    Logit of_student[kCount];
    Logit of_teacher[kCount];
    this->copied(at.place, of_student, of_teacher);
    const auto finish = [&](int k) {
      const int column = index(at.first, k);
      zs[k] = finished(of_student[k], column, args.student_bias, c.student_softcap);
      if constexpr (kTeacher) {
        zt[k] = finished(of_teacher[k], column, args.teacher_bias, c.teacher_softcap);
      }
    };
    if (Call::kPlain || this->whole(at.first)) {
      for_columns(zs, finish);
      return;
    }
    for_columns(zs, [&](int k) { // where there is no column there is no bias, and a softcap makes -inf finite
      if (exists(index(at.first, k))) {
        finish(k);
      } else {
        zs[k] = zt[k] = -std::numeric_limits<T>::infinity();
      }
    });
  }

  __device__ __forceinline__ T finished(Logit logit, int column, const void* bias, T softcap) const {
    T z = static_cast<T>(logit);
    if constexpr (!Call::kPlain) {
      const T own_bias = bias != nullptr ? load_as<T>(bias, column, args.bias_type) : T(0);
      z = softcapped(z + own_bias, own_bias, softcap);
    }
    return z;
  }
};

} // namespace distill::losses::streaming
