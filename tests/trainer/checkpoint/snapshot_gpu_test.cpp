#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <future>

#include "trainer/checkpoint/snapshot.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/host_slab.h"

namespace distill::checkpoint {
namespace {

constexpr int64_t kTensors = 12;
constexpr int64_t kElements = int64_t{128} << 20; // of a tensor; 6 GiB in all

class SnapshotGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(5);
    for (int64_t i = 0; i < kTensors; ++i) {
      tensors_.push_back({"state", at::randn({kElements}, device_)});
    }
    tensors_.push_back({"step", at::zeros({1}, device_)});
    const int64_t bytes = state_bytes(tensors_);
    const auto slab = device::HostSlab::allocate(bytes, device_, 1, "test");
    ASSERT_TRUE(slab.ok()) << slab.status();
    memory_ = device::HostSlab::take(*slab, bytes);
    factor_ = at::randn({4096, 4096}, at::TensorOptions().device(device_).dtype(at::kBFloat16));
    numbers_ = at::zeros({16}, device_);
    on_host_ = at::zeros({16}, at::TensorOptions().pinned_memory(true));
    for (int i = 0; i < 3; ++i) {
      queue_step();
    }
    device::synchronize(device_);
  }

  // Work as a step has it: products, and numbers for the host.
  void queue_step() {
    for (int i = 0; i < 4; ++i) {
      product_ = at::mm(factor_, factor_);
    }
    on_host_.copy_(numbers_.zero_(), /*non_blocking=*/true);
  }

  void queue_update() {
    for (NamedTensor& named : tensors_) {
      named.tensor.fill_(-1);
    }
  }

  at::Device device_{at::kCUDA, 0};
  std::vector<NamedTensor> tensors_;
  at::Tensor memory_;
  at::Tensor factor_, product_, numbers_, on_host_;
};

TEST_F(SnapshotGpuTest, HoldsTheStateFromBeforeTheUpdate) {
  std::vector<at::Tensor> expected;
  for (const NamedTensor& named : tensors_) {
    expected.push_back(named.tensor.cpu());
  }
  for (int64_t i = 0; i < kTensors; ++i) { // the update before: queued, not done
    tensors_[static_cast<size_t>(i)].tensor.add_(1);
    expected[static_cast<size_t>(i)].add_(1);
  }
  Snapshot snapshot(memory_, device_);
  snapshot.take(tensors_);
  {
    const device::ForbidSynchronization forbid(true); // as in a step under parallel.debug_checks
    auto copy = std::async(std::launch::async, [&] { snapshot.copy(); });
    queue_step();
    snapshot.before_update();
    queue_update();
    copy.get();
  }
  int64_t position = 0;
  for (const at::Tensor& tensor : expected) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    EXPECT_TRUE(memory_.narrow(0, position, bytes).equal(tensor.view(at::kByte)));
    position += bytes;
  }
}

// The numbers of the step before were copied to the host last, as in training: with all copies queued at once, the
// next kernel began after them.
TEST_F(SnapshotGpuTest, StepsGoOnBesideTheCopy) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
  Snapshot snapshot(memory_, device_);
  snapshot.take(tensors_);
  const auto began = now();
  auto copy = std::async(std::launch::async, [&] {
    snapshot.copy();
    return now();
  });
  int64_t steps = 0;
  std::chrono::steady_clock::time_point first;
  while (copy.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    queue_step();
    c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device_).synchronize(); // the numbers are on the host
    first = ++steps == 1 ? now() : first;
  }
  const double copy_seconds = seconds(copy.get() - began);
  std::printf(
      "copied %.2f GB in %.4f s; the first step beside it took %.4f s, %lld steps ended\n",
      1e-9 * static_cast<double>(memory_.numel()), copy_seconds, seconds(first - began), static_cast<long long>(steps));
  ASSERT_GE(steps, 1) << "nothing ran beside the copy";
  EXPECT_LT(seconds(first - began), 0.25 * copy_seconds);
  snapshot.before_update();
  queue_update();
  EXPECT_LT(snapshot.stall_seconds(), 0.1 * copy_seconds);
}

} // namespace
} // namespace distill::checkpoint
