// The instructions that CUDA C++ has no words for: shared memory by address, that of other blocks of a cluster, and the
// barriers in shared memory that count arrivals and bytes. tests/losses/emulation has the same functions for a CPU.
#pragma once

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

// The shared memory whose size the launch gives.
__device__ __forceinline__ unsigned char* launched_memory() {
  extern __shared__ __align__(128) unsigned char shared[];
  return shared;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// What lies at an address of shared memory.
template <typename V>
__device__ __forceinline__ V load_shared_as(uint32_t address) {
  return *static_cast<const V*>(__cvta_shared_to_generic(address));
}

template <typename V>
__device__ __forceinline__ void store_shared_as(uint32_t address, const V& value) {
  *static_cast<V*>(__cvta_shared_to_generic(address)) = value;
}

// row_exp2 in a branch that is hardly ever taken: not computed ahead of it.
__device__ __forceinline__ float exp2_where_it_stands(float x) {
  float y = 0;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The product by itself: what follows makes no fused multiply-add of it, which would lack its rounding.
__device__ __forceinline__ float rounded_product(float a, float b) {
  return __fmul_rn(a, b);
}

// What the L2 cache does with what is copied. As constants, since a policy in a register that lanes may disagree on
// costs an instruction more for each copy. kEvictFirst is what ptxas makes of createpolicy.fractional.L2::evict_first
// for all of it, for sm_80 and sm_90 alike; kEvictNormal is CUTLASS's value for no preference.
constexpr uint64_t kEvictNormal = 0x1000000000000000;
constexpr uint64_t kEvictFirst = 0x12f0000000000000;

// Begins to copy 4, 8 or 16 bytes into shared memory.
template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, uint64_t policy) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "l"(policy)
                 : "memory");
  }
}

// Ends a group of this thread's copies, which may be empty.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of this thread's copies but the last kGroups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Stores what is not read again soon.
template <typename V>
__device__ __forceinline__ void store_streaming(void* to, const V& value) {
  if constexpr (sizeof(V) == 8) {
    __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&value));
  } else if constexpr (sizeof(V) == 16) {
    __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&value));
  } else {
    *static_cast<V*>(to) = value;
  }
}

// The pointer in registers: it is not computed anew where it is used.
template <typename V>
__device__ __forceinline__ V* in_registers(V* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

// The maximum over the warp in one instruction: floats compare like these integers. A NaN without a sign counts as the
// largest number, one with it as the smallest.
__device__ __forceinline__ float lanes_max(float value) {
  const int bits = __float_as_int(value);
  const int best = __reduce_max_sync(kAllLanes, bits ^ ((bits >> 31) & 0x7fffffff));
  return __int_as_float(best ^ ((best >> 31) & 0x7fffffff));
}

__device__ __forceinline__ double lanes_max(double value) {
  return warp_max(value);
}

// The two halves of a barrier of all threads of a row's blocks; nothing where that is one block. Of what the threads
// have stored only the barriers of expect_messages() are known to the other blocks afterwards.
__device__ __forceinline__ void row_arrive(int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
#endif
}

__device__ __forceinline__ void row_wait(int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
#endif
}

namespace cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The value, of which the compiler knows nothing: what follows from it is computed where it is used, and not before a
// loop, to be kept in registers that are needed elsewhere.
__device__ __forceinline__ int computed_anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The value in a register, which is not read anew where it is used.
__device__ __forceinline__ float in_register(float value) {
  asm("" : "+f"(value));
  return value;
}

__device__ __forceinline__ float4 load_shared_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ uint2 load_shared_uint2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

// Stores of a slot's contents. A later bulk copy into the slot must not overtake them: fence_before_copies() lies
// between them and the release of the slot. It waits for all that the thread has begun, so that one follows many
// stores.
__device__ __forceinline__ void store_shared(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

__device__ __forceinline__ void fence_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float v = 0;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

// 1 / x, to one unit in the last place.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y = 0;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t remote_address(uint32_t local, int rank) {
  uint32_t remote = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}

__device__ __forceinline__ void barrier_init_at(uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned arrivals) {
  barrier_init_at(shared_address(barrier), arrivals);
}

// Makes this thread's new barriers known to the cluster, before a barrier of all of its threads.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What a warp counts as at a barrier. One lane arrives for its warp, after __syncwarp. racecheck does not know that
// this orders what the other lanes did; in a build with DISTILL_RACECHECK every lane arrives for itself.
#ifdef DISTILL_RACECHECK
constexpr unsigned kArrivalsOfWarp = kWarp;
#else
constexpr unsigned kArrivalsOfWarp = 1;
#endif

// The arrival of a whole warp. Its earlier loads and stores come before those of the threads that wait for it.
__device__ __forceinline__ void warp_arrive_at(uint32_t barrier, int lane) {
  __syncwarp();
  if (kArrivalsOfWarp == kWarp || lane == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }
}

__device__ __forceinline__ void warp_arrive(uint64_t* barrier, int lane) {
  warp_arrive_at(shared_address(barrier), lane);
}

// The only arrival of this phase, which also waits for `bytes`.
__device__ __forceinline__ void barrier_expect_at(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  barrier_expect_at(shared_address(barrier), bytes);
}

// Copies `bytes`, a multiple of 16, into this block's shared memory; `barrier` counts them.
__device__ __forceinline__ void bulk_copy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// Copies 4 bytes into this block's shared memory.
__device__ __forceinline__ void word_copy(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

// This lane's arrival, once all of its earlier word copies are there.
__device__ __forceinline__ void barrier_arrive_after_copies_at(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait_at(uint32_t barrier, uint32_t phase) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 "
        "p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
  }
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t phase) {
  barrier_wait_at(shared_address(barrier), phase);
}

// Stores `value` in another block's shared memory (a shared::cluster address); a barrier there counts its bytes.
__device__ __forceinline__ void send(uint32_t address, float value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 "
      "[%0], %1, [%2];" ::"r"(address),
      "f"(value), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void send(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// A group of four warps changes the number of its registers for each thread, a multiple of 8; all of its threads do.
// Code for all GPUs from compute capability 9.0 on (compute_90, and not 90a) has no such instruction; each thread keeps
// its registers there.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// Of numbers that are not negative, which compare like their bits; NaN counts as the largest.
__device__ __forceinline__ float least_of(float a, float b, float c) {
  return __int_as_float(__vimin3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}

#endif

} // namespace cluster

// Messages between the blocks of a row: each block has a barrier at which one arrives from every block, itself
// included. Before compute capability 9.0 a row has one block, and there are none.

// Makes a barrier that waits, once, for messages of `bytes` in all. By one thread, before row_arrive().
__device__ __forceinline__ void expect_messages(uint64_t* barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cluster::barrier_init(barrier, 1);
  cluster::publish_barriers();
  cluster::barrier_expect(barrier, bytes);
#endif
}

// Stores a message in block `to`, after row_wait(). place, barrier: where this block has them, which is where the other
// block has its own.
template <typename Message>
__device__ __forceinline__ void send_message(Message* place, int to, const Message& message, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(sizeof(Message) % sizeof(float4) == 0 && alignof(Message) >= alignof(float4));
  const uint32_t place_there = cluster::remote_address(shared_address(place), to);
  const uint32_t barrier_there = cluster::remote_address(shared_address(barrier), to);
  const auto* pieces = reinterpret_cast<const float4*>(&message);
#pragma unroll
  for (uint32_t k = 0; k < sizeof(Message) / sizeof(float4); ++k) {
    cluster::send(place_there + k * static_cast<uint32_t>(sizeof(float4)), pieces[k], barrier_there);
  }
#endif
}

// Waits for the messages to this block.
__device__ __forceinline__ void wait_for_messages(uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cluster::barrier_wait(barrier, 0);
#endif
}

} // namespace distill::losses
