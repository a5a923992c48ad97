#include <ATen/cuda/MemPool.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trainer/sharding/nccl_backend.h"

namespace distill::sharding {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, std::chrono::milliseconds timeout,
    int64_t max_ctas, bool copy_engines, at::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  if (max_ctas > 0) {
    options->config.maxCTAs = static_cast<int>(max_ctas);
  }
  if (copy_engines) {
    options->config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  }
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, static_cast<int>(rank), static_cast<int>(size), std::move(options));
  backend->eagerConnectSingleDevice(device);
  return backend;
}

at::Tensor allocate_nccl_window(c10d::Backend& backend, int64_t bytes, at::Device device) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  auto& group = dynamic_cast<c10d::ProcessGroupNCCL&>(backend);
  // A pool of its own for each buffer, never destroyed: the communicator may be gone before the last tensor is.
  auto* pool = new at::cuda::MemPool(std::dynamic_pointer_cast<allocator::CUDAAllocator>(group.getMemAllocator()));
  allocator::beginAllocateToPool(device.index(), pool->id(), [](cudaStream_t) { return true; });
  at::Tensor buffer = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  allocator::endAllocateToPool(device.index(), pool->id());
  group.registerMemPool(pool, /*symm=*/true);
  return buffer;
}

std::string nccl_flight_record() {
  return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

} // namespace distill::sharding
