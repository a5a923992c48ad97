// This file has the columns of one thread of the streaming row kernel, and the shared memory in which they lie.
#pragma once

#include <limits>

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "losses/rows/cuda/streaming/running_sums.cuh"

namespace distill::losses::streaming {

// A thread's columns are groups of vectors. Group n of all threads of a block is one piece of the row, and the blocks
// of the row take such pieces in turn. kVector > 1: a vector begins at a multiple of its size, so that the first one
// may begin before the row. kVector == 1: the columns of a vector are G::kThreads apart. Where a group has no column,
// before the row or beyond its end, its slot has -inf.
//
// A thread has slots for plan.slots groups, a ring: a group that leaves its slot leaves it to the one that is
// `slots` groups further on in the pass.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
struct Slots {
  using G = Geometry<T, kTeacher, Call>;
  static constexpr int kColumns = G::kColumns; // of a vector
  static constexpr int kCount = kColumns * G::kVectors; // of a group
  static constexpr int kBetween = kVector == 1 ? G::kThreads : 1; // columns from one of a vector to the next
  static constexpr int kLastOfGroup = (G::kVectors - 1) * G::kVectorStep + (kColumns - 1) * kBetween;
  static_assert(kVector == 1 || kVector == kColumns);

  struct Row {
    const Logit* student;
    const Logit* teacher;
    char* gradient;
    int vectors_below; // groups that begin from 0 to here have all of their columns, and can store vectors of gradients
    int begin; // the first group's first column, which may lie before the row
    int groups; // the same for all threads of the block; columns of the last ones may not exist
  };

  const RowArgs& args;
  int vocab;
  int rank; // the block's number among those of the row
  int step; // columns from one group to the next
  int whole_below; // the groups that begin from 0 to here have all of their columns
  int slots;
  uint32_t memory; // where this thread's first slot is

  __device__ Slots(const RowArgs& args, const Plan& plan, int rank, unsigned char* shared)
      : args(args),
        vocab(static_cast<int>(args.vocab)),
        rank(rank),
        step(plan.blocks * G::kGroupColumns),
        whole_below(max(vocab - kLastOfGroup, 0)),
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
    const bool vectors = kVector > 1 &&
        (reinterpret_cast<uintptr_t>(row.gradient) + row.begin * bytes) % min(kColumns * bytes, 16L) == 0;
    row.vectors_below = vectors ? whole_below : 0;
    return row;
  }

  // Returns column k of the group that begins at column `first`.
  __device__ __forceinline__ static int index(int first, int k) {
    return first + k / kColumns * G::kVectorStep + k % kColumns * kBetween;
  }

  __device__ __forceinline__ bool exists(int column) const {
    return column >= 0 && column < vocab;
  }

  // Returns whether all columns of a group exist.
  __device__ __forceinline__ bool whole(int first) const {
    return is_below(first, whole_below);
  }

  __device__ __forceinline__ static bool is_below(int first, int end) {
    return static_cast<unsigned>(first) < static_cast<unsigned>(end);
  }

  // Returns whether the column is this thread's.
  __device__ __forceinline__ bool has(const Row& row, int column) const {
    const int after = column - row.begin;
    const int of_step = after % step;
    const int of_vector = of_step % G::kVectorStep;
    return after >= 0 && of_step < G::kGroupColumns && of_vector % kBetween == 0 && of_vector < kColumns * kBetween;
  }

  // Returns the slot after this one.
  template <bool kUp>
  __device__ __forceinline__ int next(int place) const {
    const int last = (slots - 1) * G::kGroupBytes;
    return kUp ? (place == last ? 0 : place + G::kGroupBytes) : (place == 0 ? last : place - G::kGroupBytes);
  }

  // Begins to copy the row's first groups, as many as there are slots.
  __device__ __forceinline__ void copy_first(const Row& row) const {
#pragma unroll 1
    for (int n = 0; n < slots; ++n) {
      copy(row, row.begin + n * step, n * G::kGroupBytes, /*once=*/row.groups <= slots);
    }
  }

  // Begins to copy the group whose first column is `first`. once: L2 need not keep it.
  __device__ __forceinline__ void copy(const Row& row, int first, int place, bool once) const {
    if (!whole(first)) {
      copy_edge(row, first, place);
    } else if (once) {
      copy_whole(row, first, place, kEvictFirst);
    } else {
      copy_whole(row, first, place, kEvictNormal);
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

  // Reads the logits of a group that has been copied.
  __device__ __forceinline__ void copied(int place, Logit (&student)[kCount], Logit (&teacher)[kCount]) const {
    read<Vector<Logit, kColumns>>(place, student, teacher);
  }

  // Puts a number of each column of a group, and with a teacher another one, in the place of its logits.
  __device__ __forceinline__ void keep(int place, const T (&one)[kCount], const T (&other)[kCount]) const {
#pragma unroll
    for (int v = 0; v < G::kVectors; ++v) {
      Numbers put;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        put.values[k] = one[v * kColumns + k];
      }
      store_shared_as(address(place, v, 0), put);
      if constexpr (kTeacher) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          put.values[k] = other[v * kColumns + k];
        }
        store_shared_as(address(place, v, 1), put);
      }
    }
  }

  // Reads the numbers that keep() has put there; without a teacher `other` is not changed.
  __device__ __forceinline__ void take(int place, T (&one)[kCount], T (&other)[kCount]) const {
    read<Numbers>(place, one, other);
  }

  template <typename Element, int kSize>
  struct alignas(kSize * sizeof(Element) < 16 ? kSize * sizeof(Element) : 16) Vector {
    Element values[kSize];
  };

 private:
  using Piece = Vector<Logit, kVector>; // what is copied at once
  using Numbers = Vector<T, kColumns>; // one side of a vector; copied logits lie at its beginning

  __device__ __forceinline__ uint32_t address(int place, int v, int side) const {
    return memory + static_cast<uint32_t>(place + v * G::kVectorBytes + side * G::kSideBytes);
  }

  template <typename As, typename Element>
  __device__ __forceinline__ void read(int place, Element (&one)[kCount], Element (&other)[kCount]) const {
#pragma unroll
    for (int v = 0; v < G::kVectors; ++v) {
      const auto got = load_shared_as<As>(address(place, v, 0));
      const auto got_other = load_shared_as<As>(address(place, v, kTeacher ? 1 : 0));
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        one[v * kColumns + k] = got.values[k];
        if constexpr (kTeacher) {
          other[v * kColumns + k] = got_other.values[k];
        }
      }
    }
  }

  __device__ __forceinline__ void copy_whole(const Row& row, int first, int place, uint64_t policy) const {
#pragma unroll
    for (int v = 0; v < G::kVectors; ++v) {
      copy_vector(address(place, v, 0), row.student + first + v * G::kVectorStep, policy);
      if constexpr (kTeacher) {
        copy_vector(address(place, v, 1), row.teacher + first + v * G::kVectorStep, policy);
      }
    }
  }

  __device__ __forceinline__ void copy_vector(uint32_t to, const Logit* from, uint64_t policy) const {
    if constexpr (kVector > 1) {
      copy_async<sizeof(Piece)>(to, from, policy);
    } else {
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        copy_one(to + static_cast<uint32_t>(k * sizeof(Logit)), from + k * kBetween, policy);
      }
    }
  }

  // Copies a group of which some columns may not exist.
  __device__ __forceinline__ void copy_edge(const Row& row, int first, int place) const {
    const auto none = static_cast<Logit>(-std::numeric_limits<float>::infinity());
#pragma unroll 1
    for (int k = 0; k < kCount; ++k) {
      const int column = index(first, k);
#pragma unroll
      for (int side = 0; side < (kTeacher ? 2 : 1); ++side) {
        const uint32_t to = address(place, k / kColumns, side) + static_cast<uint32_t>(k % kColumns * sizeof(Logit));
        if (exists(column)) {
          copy_one(to, (side == 0 ? row.student : row.teacher) + column, kEvictNormal);
        } else {
          store_shared_as(to, none);
        }
      }
    }
  }

  __device__ __forceinline__ static void copy_one(uint32_t to, const Logit* from, uint64_t policy) {
    if constexpr (sizeof(Logit) >= 4) {
      copy_async<sizeof(Logit)>(to, from, policy);
    } else {
      store_shared_as(to, *from);
    }
  }
};

} // namespace distill::losses::streaming
