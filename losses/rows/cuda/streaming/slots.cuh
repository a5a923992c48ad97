// The columns of one thread of the streaming row kernel, and the shared memory in which they lie.
#pragma once

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "losses/rows/cuda/streaming/running_sums.cuh"

namespace distill::losses::streaming {

// A thread's columns are groups of vectors. Group n of all threads of a block is one piece of the row, and the blocks
// of the row take such pieces in turn. kVector > 1: a vector begins at a multiple of its size, so that the first one
// may begin before the row; its columns there are skipped, like those beyond the last one. kVector == 1: the columns of
// a vector are kThreads apart.
//
// There are slots for plan.slots groups of a thread, a ring: a group that leaves its slot leaves it to the one that is
// `slots` groups further on in the pass.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
struct Slots {
  using G = Geometry<T, kTeacher, Call>;
  static constexpr int kColumns = G::kColumns;
  static constexpr int kBetween = kVector == 1 ? kThreads : 1; // columns from one of a vector to the next
  static_assert(kVector == 1 || kVector == kColumns);

  struct Row {
    const Logit* student;
    const Logit* teacher;
    char* gradient;
    bool vector_stores; // a whole vector's gradient can be stored at once
    int begin; // the first group's first column, which may lie before the row
    int groups; // the same for all threads of the block; columns of the last ones may not exist
  };

  // A group or a vector of it.
  struct Group {
    int first; // column
    int place; // in the thread's shared memory, in bytes
    bool was_there; // since the pass before
    bool stays; // for the pass after
    bool edge; // some of its columns may not exist
  };

  const RowArgs& args;
  int vocab;
  int rank; // of the block among those of the row
  int step; // columns from one group to the next
  int whole_below; // the vectors that begin from 0 to here have all of their columns
  int slots;
  uint32_t memory; // where this thread's first slot is

  __device__ Slots(const RowArgs& args, const Plan& plan, int rank, unsigned char* shared)
      : args(args),
        vocab(static_cast<int>(args.vocab)),
        rank(rank),
        step(plan.blocks * G::kGroupColumns),
        whole_below(max(vocab - (kColumns - 1) * kBetween, 0)),
        slots(plan.slots),
        memory(shared_address(shared) + threadIdx.x * static_cast<uint32_t>(sizeof(Numbers))) {}

  // kVector > 1: both sides' rows begin equally far from a multiple of 16 bytes.
  __device__ __forceinline__ Row row_at(int64_t n) const {
    const int64_t bytes = element_bytes(args.gradient_type);
    const auto* student = static_cast<const Logit*>(args.student) + n * args.student_stride;
    int of_block = rank * G::kGroupColumns;
    if constexpr (kVector > 1) {
      of_block -= static_cast<int>(reinterpret_cast<uintptr_t>(student) % sizeof(Piece) / sizeof(Logit));
    }
    Row row;
    row.student = in_registers(student);
    row.teacher = nullptr;
    if constexpr (kTeacher) {
      row.teacher = in_registers(static_cast<const Logit*>(args.teacher) + n * args.teacher_stride);
    }
    row.gradient = static_cast<char*>(args.gradient) + n * args.gradient_stride * bytes;
    row.begin = of_block + static_cast<int>(threadIdx.x) * kVector;
    row.groups = max(vocab - of_block + step - 1, 0) / step;
    row.vector_stores = kVector > 1 &&
        (reinterpret_cast<uintptr_t>(row.gradient) + row.begin * bytes) % min(kColumns * bytes, 16L) == 0;
    return row;
  }

  // Column k of a vector.
  __device__ __forceinline__ static int index(int first, int k) {
    return first + k * kBetween;
  }

  __device__ __forceinline__ bool exists(int column) const {
    return column >= 0 && column < vocab;
  }

  // Whether all columns of a vector exist.
  __device__ __forceinline__ bool whole(int first) const {
    return static_cast<unsigned>(first) < static_cast<unsigned>(whole_below);
  }

  // Whether the column is this thread's.
  __device__ __forceinline__ bool has(const Row& row, int column) const {
    const int after = column - row.begin;
    const int of_step = after % step;
    const int of_vector = of_step % G::kVectorStep;
    return after >= 0 && of_step < G::kGroupColumns && of_vector % kBetween == 0 && of_vector < kColumns * kBetween;
  }

  // Vector v of a group.
  __device__ __forceinline__ static Group vector(const Group& group, int v) {
    Group part = group;
    part.first += v * G::kVectorStep;
    part.place += v * G::kVectorBytes;
    return part;
  }

  // The slot after this one.
  template <bool kUp>
  __device__ __forceinline__ int next(int place) const {
    const int last = (slots - 1) * G::kGroupBytes;
    return kUp ? (place == last ? 0 : place + G::kGroupBytes) : (place == 0 ? last : place - G::kGroupBytes);
  }

  // Begins to copy the row's first groups, as many as there are slots.
  __device__ __forceinline__ void copy_first(const Row& row) const {
    for (int n = 0; n < slots; ++n) {
      copy(row, row.begin + n * step, n * G::kGroupBytes, /*edge=*/true, /*once=*/row.groups <= slots);
    }
  }

  // Begins to copy the group whose first column is `first`, as far as it exists. once: it is not copied again.
  __device__ __forceinline__ void copy(const Row& row, int first, int place, bool edge, bool once) const {
    const uint64_t policy = once ? kEvictFirst : kEvictNormal;
#pragma unroll
    for (int v = 0; v < G::kVectors; ++v, first += G::kVectorStep, place += G::kVectorBytes) {
      if (kVector > 1 && (!edge || whole(first))) {
        copy_async<sizeof(Piece)>(address(place, 0), row.student + first, policy);
        if constexpr (kTeacher) {
          copy_async<sizeof(Piece)>(address(place, 1), row.teacher + first, policy);
        }
      } else if (first < vocab) {
#pragma unroll(kVector == 1 ? kColumns : 1)
        for (int k = 0; k < kColumns; ++k) {
          const int column = index(first, k);
          if (exists(column)) {
            copy_one(address(place, 0), k, row.student + column, policy);
            if constexpr (kTeacher) {
              copy_one(address(place, 1), k, row.teacher + column, policy);
            }
          }
        }
      }
    }
    commit_copies();
  }

  // Waits for the copy of the group that comes next in a pass: it was begun `slots` groups ago, so that with enough
  // slots some of the later copies may still be on their way.
  __device__ __forceinline__ void wait() const {
    if (slots < G::kAhead) {
      wait_for_copies<0>();
    } else {
      wait_for_copies<G::kAhead - 1>();
    }
  }

  // The logits of a vector that has been copied; anything where there is no column.
  __device__ __forceinline__ void copied(
      const Group& at, Logit (&student)[kColumns], Logit (&teacher)[kColumns]) const {
    using Copied = Vector<Logit, kColumns>;
    const auto of_student = load_shared_as<Copied>(address(at.place, 0));
    const auto of_teacher = load_shared_as<Copied>(address(at.place, kTeacher ? 1 : 0));
    for_columns(student, [&](int k) {
      student[k] = of_student.values[k];
      teacher[k] = of_teacher.values[k];
    });
  }

  // Puts a number of each column of a vector, and with a teacher another one, in the place of its logits.
  __device__ __forceinline__ void keep(const Group& at, const T (&one)[kColumns], const T (&other)[kColumns]) const {
    Numbers put;
    for_columns(one, [&](int k) { put.values[k] = one[k]; });
    store_shared_as(address(at.place, 0), put);
    if constexpr (kTeacher) {
      for_columns(other, [&](int k) { put.values[k] = other[k]; });
      store_shared_as(address(at.place, 1), put);
    }
  }

  // What keep() has put there; without a teacher `other` is not changed.
  __device__ __forceinline__ void take(const Group& at, T (&one)[kColumns], T (&other)[kColumns]) const {
    const auto got = load_shared_as<Numbers>(address(at.place, 0));
    for_columns(one, [&](int k) { one[k] = got.values[k]; });
    if constexpr (kTeacher) {
      const auto got_other = load_shared_as<Numbers>(address(at.place, 1));
      for_columns(other, [&](int k) { other[k] = got_other.values[k]; });
    }
  }

  template <typename Element, int kCount>
  struct alignas(kCount * sizeof(Element) < 16 ? kCount * sizeof(Element) : 16) Vector {
    Element values[kCount];
  };

 private:
  using Piece = Vector<Logit, kVector>; // what is copied at once
  using Numbers = Vector<T, kColumns>; // one side of a vector; copied logits lie at its beginning

  __device__ __forceinline__ uint32_t address(int place, int side) const {
    return memory + static_cast<uint32_t>(place + side * G::kSideBytes);
  }

  __device__ __forceinline__ void copy_one(uint32_t to, int k, const Logit* from, uint64_t policy) const {
    to += static_cast<uint32_t>(k) * sizeof(Logit);
    if constexpr (sizeof(Logit) >= 4) {
      copy_async<sizeof(Logit)>(to, from, policy);
    } else {
      store_shared_as(to, *from);
    }
  }
};

} // namespace distill::losses::streaming
