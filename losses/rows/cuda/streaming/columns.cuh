// A thread's columns of a row in the streaming row kernel: the passes over them, and writing their gradient.
#pragma once

#include <limits>

#include "losses/rows/cuda/streaming/slots.cuh"

namespace distill::losses::streaming {

template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
struct Columns : Slots<T, Logit, kTeacher, kVector, Call> {
  using S = Slots<T, Logit, kTeacher, kVector, Call>;
  using G = typename S::G;
  using Row = typename S::Row;
  using Group = typename S::Group;
  using S::args;
  using S::exists;
  using S::index;
  using S::kColumns;
  using Terms = ColumnResult<T>[kColumns];
  static constexpr bool kChanges = !Call::kPlain || sizeof(T) != sizeof(Logit); // whether finished logits are others

  const RowConstants<T>& c;

  __device__ Columns(const RowArgs& args, const RowConstants<T>& c, const Plan& plan, int rank, unsigned char* shared)
      : S(args, plan, rank, shared), c(c) {}

  // Calls body(two numbers of each column, vector) for each vector of the row: the logits of student and teacher, or
  // what keep() has put in their place in the pass before. Columns that do not exist are -inf.
  //
  // Odd passes take the groups upwards, the others downwards, so that the last groups of a pass, as many as there are
  // slots, are the first ones of the next. place: the slot at which the pass begins, and then the next one. last: there
  // is no next one.
  template <int kPass, typename Body>
  __device__ __forceinline__ void for_each(const Row& row, int& place, bool last, const Body& body) const {
    constexpr bool kUp = kPass % 2 == 1;
    const int groups = row.groups;
    const int slots = this->slots;
    const int by = kUp ? this->step : -this->step;
    Group group{};
    group.first = kUp ? row.begin : row.begin + (groups - 1) * this->step;
    group.place = place;
#pragma unroll 1
    for (int left = groups; left > 0; --left) {
      group.was_there = kPass > 1 && groups - left < slots;
      group.stays = !last && left <= slots;
      group.edge = left == groups || left == 1;
      if (!group.was_there) {
        this->wait();
      }
#pragma unroll
      for (int v = 0; v < G::kVectors; ++v) {
        const Group part = S::vector(group, v);
        T zs[kColumns];
        T zt[kColumns] = {};
        if (group.was_there) {
          this->take(part, zs, zt);
        } else {
          logits(part, zs, zt);
          if (group.stays && (kChanges || group.edge)) {
            this->keep(part, zs, zt);
          }
        }
        body(zs, zt, part);
      }
      if (left > slots) {
        this->copy(row, group.first + slots * by, group.place, left == slots + 1, last || left <= 2 * slots);
      } else {
        commit_copies(); // wait() counts one for each group
      }
      group.first += by;
      place = group.place;
      group.place = this->template next<kUp>(group.place);
    }
  }

  // `best` or, where it is smaller, the first column of a vector whose logit is the row's maximum.
  __device__ __forceinline__ void find_max(const T (&z)[kColumns], T row_maximum, const Group& at, int& best) const {
    T max = z[0];
    for_columns(z, [&](int k) { max = row_max(max, z[k]); });
    if (max == row_maximum) {
      for_columns(z, [&](int k) { best = z[k] == row_maximum ? min(best, index(at.first, k)) : best; });
    }
  }

  __device__ __forceinline__ T student_logit(const Row& row, int column) const {
    return finished(row.student[column], column, args.student_bias, c.student_softcap);
  }

  __device__ __forceinline__ T teacher_logit(const Row& row, int column) const {
    return finished(row.teacher[column], column, args.teacher_bias, c.teacher_softcap);
  }

  // body(the divergence as an integral constant).
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

  // The terms of a column, added to the thread's sums.
  template <Divergence kDivergence>
  __device__ __forceinline__ ColumnResult<T> term(
      T zs, T zt, const SideStats<T>& of_student, const SideStats<T>& of_teacher, RowSums<T>& add) const {
    // kSeriesNearZero of cluster/mode_traits.h says why.
    constexpr bool kSeriesNearZero = !Call::kPlain || kDivergence != Divergence::kJsd;
    if constexpr (kTeacher) {
      return losses::column<kDivergence, kSeriesNearZero, Call::kLossAlone>(zs, zt, of_student, of_teacher, c, add);
    } else if constexpr (Call::kLossAlone) {
      RowSums<T> unused;
      return losses::column(zs, of_student, c, unused);
    } else {
      return losses::column(zs, of_student, c, add);
    }
  }

  // a and q of a vector take the place of its logits.
  __device__ __forceinline__ void keep_terms(const Group& at, const Terms& terms) const {
    T a[kColumns];
    T q[kColumns];
    for_columns(a, [&](int k) {
      a[k] = terms[k].a;
      q[k] = terms[k].q;
    });
    this->keep(at, a, q);
  }

  // Writes the gradient of a vector.
  __device__ __forceinline__ void write(const Row& row, const T (&values)[kColumns], const Group& at) const {
    switch (args.gradient_type) {
      case ElementType::kFloat32:
        return write_as<float>(row, values, at);
      case ElementType::kBFloat16:
        return write_as<__nv_bfloat16>(row, values, at);
      case ElementType::kFloat64:
        return write_as<double>(row, values, at);
    }
  }

  __device__ __forceinline__ void write_zeros(const Row& row) const {
    const T zeros[kColumns] = {};
    Group group{.first = row.begin, .edge = true};
    for (int left = row.groups; args.gradient != nullptr && left > 0; --left, group.first += this->step) {
      for (int v = 0; v < G::kVectors; ++v) {
        write(row, zeros, S::vector(group, v));
      }
    }
  }

 private:
  template <typename Element>
  __device__ __forceinline__ void write_as(const Row& row, const T (&values)[kColumns], const Group& at) const {
    auto* to = reinterpret_cast<Element*>(row.gradient) + at.first;
    typename S::template Vector<Element, kColumns> out;
    for_columns(values, [&](int k) { out.values[k] = static_cast<Element>(values[k]); });
    if (row.vector_stores && (!at.edge || this->whole(at.first))) {
      store_streaming(to, out);
      return;
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      if (exists(index(at.first, k))) {
        to[index(0, k)] = out.values[k];
      }
    }
  }

  // The logits of a vector that has been copied, after bias and softcap.
  __device__ __forceinline__ void logits(const Group& at, T (&zs)[kColumns], T (&zt)[kColumns]) const {
    Logit of_student[kColumns];
    Logit of_teacher[kColumns];
    this->copied(at, of_student, of_teacher);
    const auto finish = [&](const auto& there) {
      for_columns(zs, [&](int k) {
        const int column = index(at.first, k);
        const T none = -std::numeric_limits<T>::infinity();
        zs[k] = there(column) ? finished(of_student[k], column, args.student_bias, c.student_softcap) : none;
        if constexpr (kTeacher) {
          zt[k] = there(column) ? finished(of_teacher[k], column, args.teacher_bias, c.teacher_softcap) : none;
        }
      });
    };
    if (at.edge) {
      finish([&](int column) { return exists(column); });
    } else {
      finish([](int /*column*/) { return true; });
    }
  }

  __device__ __forceinline__ T finished(Logit logit, int column, const void* bias, T softcap) const {
    T z = static_cast<T>(logit);
    if constexpr (!Call::kPlain) {
      if (bias != nullptr) {
        z += load_as<T>(bias, column, args.bias_type);
      }
      z = softcapped(z, softcap);
    }
    return z;
  }
};

} // namespace distill::losses::streaming
