#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trainer/sharding/nccl_backend.h"

namespace distill::sharding {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, std::chrono::milliseconds timeout,
    int64_t max_ctas, at::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  if (max_ctas > 0) {
    options->config.maxCTAs = static_cast<int>(max_ctas);
  }
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, static_cast<int>(rank), static_cast<int>(size), std::move(options));
  backend->eagerConnectSingleDevice(device);
  return backend;
}

std::string nccl_flight_record() {
  return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

} // namespace distill::sharding
