// Stands in for the file of this name where a kernel is compiled for a CPU: the same functions, in C++. Bulk copies and
// those of words are complete at once, others when they are waited for.
#pragma once

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

inline unsigned char* launched_memory() {
  return emulation::here().shared;
}

inline uint32_t shared_address(const void* pointer) {
  return emulation::address_of(pointer);
}

template <typename V>
V load_shared_as(uint32_t address) {
  V v;
  std::memcpy(&v, emulation::at(address), sizeof(v));
  return v;
}
template <typename V>
void store_shared_as(uint32_t address, const V& value) {
  std::memcpy(emulation::at(address), &value, sizeof(value));
}

inline float exp2_where_it_stands(float x) {
  return row_exp2(x);
}
inline float rounded_product(float a, float b) {
  return a * b;
}

constexpr uint64_t kEvictNormal = 0;
constexpr uint64_t kEvictFirst = 0;

template <int kBytes>
void copy_async(uint32_t shared, const void* global, uint64_t /*policy*/) {
  emulation::expect_aligned(global, kBytes);
  emulation::expect_aligned(emulation::at(shared), kBytes);
  emulation::copy_later(shared, global, kBytes);
}
inline void commit_copies() {
  emulation::commit_copies();
}
template <int kGroups>
void wait_for_copies() {
  emulation::wait_for_copies(kGroups);
}

template <typename V>
void store_streaming(void* to, const V& value) {
  emulation::expect_aligned(to, sizeof(V) < 16 ? sizeof(V) : 16);
  std::memcpy(to, &value, sizeof(value));
}

template <typename V>
V* in_registers(V* pointer) {
  return pointer;
}

template <typename T>
T lanes_max(T value) {
  return emulation::over_lanes(kAllLanes, value, [](T a, T b) { return a > b ? a : b; });
}

inline void row_arrive(int /*blocks*/) {}
inline void row_wait(int blocks) {
  if (blocks > 1) {
    emulation::sync_cluster();
  }
}

namespace cluster {

constexpr unsigned kArrivalsOfWarp = 1;

inline int computed_anew(int value) {
  return value;
}

inline float in_register(float value) {
  return value;
}

inline float4 load_shared_float4(uint32_t address) {
  return load_shared_as<float4>(address);
}
inline uint2 load_shared_uint2(uint32_t address) {
  return load_shared_as<uint2>(address);
}
inline float load_shared_float(uint32_t address) {
  return load_shared_as<float>(address);
}
template <typename V>
void store_shared(uint32_t address, V v) {
  std::memcpy(emulation::at(address), &v, sizeof(v));
}

inline void fence_before_copies() {}

inline float least_of(float a, float b, float c) {
  return std::min(std::min(a, b), c);
}

inline float approximate_reciprocal(float x) {
  return 1.0F / x;
}

inline uint32_t remote_address(uint32_t local, int rank) {
  return emulation::address_in_block(local, rank);
}

inline void barrier_init_at(uint32_t barrier, unsigned arrivals) {
  emulation::barrier_init(barrier, arrivals);
}
inline void barrier_init(uint64_t* barrier, unsigned arrivals) {
  barrier_init_at(shared_address(barrier), arrivals);
}
inline void publish_barriers() {}
inline void warp_arrive_at(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) {
    emulation::barrier_arrive(barrier, 0);
  }
}
inline void warp_arrive(uint64_t* barrier, int lane) {
  warp_arrive_at(shared_address(barrier), lane);
}
inline void barrier_expect_at(uint32_t barrier, uint32_t bytes) {
  emulation::barrier_arrive(barrier, bytes);
}
inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  barrier_expect_at(shared_address(barrier), bytes);
}
inline void barrier_wait_at(uint32_t barrier, uint32_t phase) {
  emulation::barrier_wait(barrier, phase);
}
inline void barrier_wait(uint64_t* barrier, uint32_t phase) {
  barrier_wait_at(shared_address(barrier), phase);
}

inline void bulk_copy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulation::expect_aligned(global, 16);
  emulation::expect_aligned(emulation::at(shared), 16);
  emulation::expect_aligned(reinterpret_cast<const void*>(static_cast<uintptr_t>(bytes)), 16);
  std::memcpy(emulation::at(shared), global, bytes);
  emulation::barrier_complete(barrier, bytes);
}
inline void word_copy(uint32_t shared, const void* global) {
  emulation::expect_aligned(global, 4);
  std::memcpy(emulation::at(shared), global, 4);
}
inline void barrier_arrive_after_copies_at(uint32_t barrier) {
  emulation::barrier_arrive(barrier, 0);
}

template <typename V>
void send(uint32_t address, V value, uint32_t barrier) {
  std::memcpy(emulation::at(address), &value, sizeof(value));
  emulation::barrier_complete(barrier, sizeof(value));
}

inline void cluster_barrier() {
  emulation::sync_cluster();
}

template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

} // namespace cluster

inline void expect_messages(uint64_t* barrier, uint32_t bytes) {
  cluster::barrier_init(barrier, 1);
  cluster::barrier_expect(barrier, bytes);
}
template <typename Message>
void send_message(Message* place, int to, const Message& message, uint64_t* barrier) {
  static_assert(sizeof(Message) % sizeof(float4) == 0 && alignof(Message) >= alignof(float4));
  cluster::send(
      cluster::remote_address(shared_address(place), to), message,
      cluster::remote_address(shared_address(barrier), to));
}
inline void wait_for_messages(uint64_t* barrier) {
  cluster::barrier_wait(barrier, 0);
}

} // namespace distill::losses
