#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "trainer/device/allocator_model.h"
#include "trainer/device/device_hooks.h"

namespace distill::device {
namespace {

class AllocatorOnGpu : public testing::TestWithParam<AllocatorKind> {};

// The same random requests, to libtorch and to the model.
TEST_P(AllocatorOnGpu, TakesWhatTheModelTakes) {
  constexpr int64_t kMostBytes = int64_t{8} << 30, kSmallSegment = int64_t{2} << 20;
  const at::Device gpu(at::kCUDA, 0);
  at::globalContext().lazyInitDevice(at::kCUDA);
  empty_allocator_cache(gpu);
  const AllocatorSettings settings = use_allocator(gpu, allocator_settings(GetParam(), nullptr, nullptr));
  if (settings.kind != GetParam()) {
    GTEST_SKIP() << settings.note;
  }
  empty_allocator_cache(gpu); // what use_allocator has tried
  ASSERT_EQ(allocator_bytes(gpu).reserved, 0);
  const auto model = caching_allocator(GetParam());
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(0, 27.5); // up to 190 MiB
  std::vector<std::pair<at::Tensor, BlockId>> live;
  int64_t bytes = 0, largest_difference = 0;
  for (int request = 0; request < 4000; ++request) {
    const auto size = static_cast<int64_t>(std::exp2(exponent(random)));
    while (!live.empty() && (bytes + size > kMostBytes || random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      bytes -= live.back().first.numel();
      model->release(live.back().second);
      live.pop_back();
    }
    live.emplace_back(at::empty({size}, at::TensorOptions().dtype(at::kByte).device(gpu)), model->allocate(size));
    bytes += size;
    // Of free blocks of one size libtorch takes the one with the lowest address. Where each segment is a piece of its
    // own, addresses are the driver's, so that the two may differ by a segment of small blocks.
    const int64_t difference = std::abs(allocator_bytes(gpu).reserved - model->reserved());
    ASSERT_LE(difference, GetParam() == AllocatorKind::kExpandable ? 0 : kSmallSegment)
        << "request " << request << " of " << size << " bytes";
    largest_difference = std::max(largest_difference, difference);
  }
  std::cout << "largest difference in reserved memory: " << (largest_difference >> 20) << " MiB\n";
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, AllocatorOnGpu, testing::Values(AllocatorKind::kSegments, AllocatorKind::kExpandable),
    [](const auto& test) { return std::string(base::enum_name(test.param)); });

} // namespace
} // namespace distill::device
