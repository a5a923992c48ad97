#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

// nccl_backend_cuda.cpp, or nccl_backend_no_cuda.cpp in a build without CUDA.
namespace distill::sharding {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, std::chrono::milliseconds timeout,
    int64_t max_ctas, at::Device device);

// NCCL's flight recorder as JSON; empty where nothing was recorded.
std::string nccl_flight_record();

} // namespace distill::sharding
