#pragma once

#include <cuda_fp16.h>

#include <cstdio>

#include "losses/rows/cuda/device_functions.cuh"
#include "losses/rows/sparse_math.h"

// These device functions are for rows with a sparse teacher. A block has one row; its first warp reads the entries, a
// lane every 32nd, so that their sums need shuffles only and come out the same in every run.
namespace distill::losses {

template <typename T>
__device__ __forceinline__ T load_entry_value(const void* data, int64_t index, EntryType type) {
  switch (type) {
    case EntryType::kFloat32:
      return static_cast<T>(static_cast<const float*>(data)[index]);
    case EntryType::kBFloat16:
      return static_cast<T>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]));
    case EntryType::kFloat16:
      return static_cast<T>(__half2float(static_cast<const __half*>(data)[index]));
    case EntryType::kFloat64:
      return static_cast<T>(static_cast<const double*>(data)[index]);
  }
  return T(0);
}

// A RowEntries has the entries of one row.
template <typename T>
struct RowEntries {
  const SparseTeacher& teacher;
  const T* logits; // [K]
  int64_t teacher_row;

  __device__ __forceinline__ RowEntries(const SparseRowArgs& args, int64_t row)
      : teacher(args.teacher),
        logits(static_cast<const T*>(args.entry_logits) + row * args.entry_stride),
        teacher_row(args.teacher.index == nullptr ? row : args.teacher.index[row]) {}

  __device__ __forceinline__ int count() const {
    return static_cast<int>(teacher.entries);
  }

  __device__ __forceinline__ int64_t id(int k) const {
    return teacher.ids[teacher_row * teacher.ids_stride + k];
  }

  __device__ __forceinline__ T value(int k) const {
    return load_entry_value<T>(teacher.values, teacher_row * teacher.values_stride + k, teacher.value_type);
  }

  __device__ __forceinline__ Entry<T> operator[](int k) const {
    return {id(k), logits[k], value(k)};
  }
};

template <typename T>
__device__ __forceinline__ EntryExtremes<T> warp_merge(const EntryExtremes<T>& mine) {
  EntryExtremes<T> all;
  all.max_logit = warp_max(mine.max_logit);
  all.max_value = warp_max(mine.max_value);
  all.min_value = -warp_max(-mine.min_value);
  all.count = warp_sum(mine.count);
  all.label_entry = -warp_min(-mine.label_entry);
  return all;
}

template <typename T>
__device__ __forceinline__ EntrySums<T> warp_merge(const EntrySums<T>& mine) {
  return {
      warp_sum(mine.sum), warp_sum(mine.unit_sum), warp_sum(mine.mass), warp_min(mine.teacher_best),
      warp_min(mine.student_best)};
}

// One warp makes both passes over a row's entries; the results are the same in every lane. `entry(k)`: an Entry<T>.
template <typename T, typename GetEntry>
__device__ __forceinline__ void warp_entries(
    int count, int64_t label, const RowConstants<T>& c, const GetEntry& entry, EntryExtremes<T>& extremes,
    EntrySums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  EntryExtremes<T> my_extremes;
  for (int k = lane; k < count; k += kWarp) {
    add_entry(my_extremes, entry(k), k, label);
  }
  extremes = warp_merge(my_extremes);
  EntrySums<T> my_sums;
  for (int k = lane; k < count; k += kWarp) {
    add_entry(my_sums, entry(k), k, extremes, c);
  }
  sums = warp_merge(my_sums);
}

// Ends the kernel, and with it the process's use of the device, as a failing assertion of libtorch does.
__device__ __forceinline__ void stop(const char* message, int64_t row, int64_t id) {
  printf("distill: %s (row %lld, id %lld)\n", message, static_cast<long long>(row), static_cast<long long>(id));
  __trap();
}

} // namespace distill::losses
