#include "trainer/device/memory_park.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "trainer/device/device_hooks.h"

namespace distill::device {
namespace {

// On the CPU by default; the GPU's program of this file runs the same on a GPU.
at::Device tested_device() {
  return cuda_device_count() > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

class MemoryParkTest : public ::testing::Test {
 protected:
  at::Device device_ = tested_device();
  MemoryPark park_{device_, /*processes_on_host=*/1};

  at::Tensor random(int64_t numel, at::ScalarType dtype = at::kFloat) const {
    return at::randn({numel}, at::TensorOptions().device(device_)).to(dtype);
  }
};

TEST_F(MemoryParkTest, BitsComeBackAndViewsStayValid) {
  const at::Tensor master = random(1 << 20), weights = random(1 << 19, at::kBFloat16), view = master.narrow(0, 7, 100);
  const at::Tensor master_before = master.cpu().clone(), weights_before = weights.cpu().clone();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(
        park_.park({{master, Category::kMaster}, {weights, Category::kStudent}, {view, Category::kMaster}}).ok());
    EXPECT_EQ(park_.bytes(), (4 << 20) + (1 << 20)); // the view's memory is that of its tensor
    EXPECT_EQ(master.storage().nbytes(), 0U);
    EXPECT_EQ(master.storage().data(), nullptr);
    ASSERT_TRUE(park_.restore().ok());
    EXPECT_TRUE(at::equal(master.cpu(), master_before));
    EXPECT_TRUE(at::equal(weights.cpu(), weights_before));
    EXPECT_TRUE(at::equal(view.cpu(), master_before.narrow(0, 7, 100)));
  }
  EXPECT_TRUE(park_.restore().ok()); // nothing is parked any more
}

TEST_F(MemoryParkTest, OnAGpuTheDeviceHasTheMemoryMeanwhile) {
  if (!device_.is_cuda()) {
    GTEST_SKIP() << "needs a GPU";
  }
  const at::Tensor large = random(int64_t{64} << 20);
  synchronize(device_);
  const int64_t before = used_device_bytes(device_);
  ASSERT_TRUE(park_.park({{large, Category::kMaster}}).ok());
  EXPECT_LE(used_device_bytes(device_), before - (int64_t{240} << 20));
  ASSERT_TRUE(park_.restore().ok());
}

TEST_F(MemoryParkTest, MemoryOfOthersStays) {
  std::vector<float> own(64, 3.0F);
  const at::Tensor foreign = at::from_blob(own.data(), {64});
  const at::Tensor other_device = device_.is_cuda() ? at::ones({4}) : at::Tensor();
  ASSERT_TRUE(
      park_.park({{foreign, Category::kMaster}, {other_device, Category::kMaster}, {at::Tensor(), Category::kMaster}})
          .ok());
  EXPECT_EQ(park_.bytes(), 0);
  EXPECT_EQ(foreign[63].item<float>(), 3.0F);
  ASSERT_TRUE(park_.restore().ok());
}

TEST_F(MemoryParkTest, AHostWithTooLittleMemoryIsNamedAndNothingIsMoved) {
  MemoryPark crowded(device_, /*processes_on_host=*/int64_t{1} << 40);
  const at::Tensor master = random(1 << 10);
  const absl::Status status = crowded.park({{master, Category::kMaster}});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("onpolicy.offload"));
  EXPECT_FALSE(crowded.parked());
  EXPECT_NE(master.storage().nbytes(), 0U);
}

} // namespace
} // namespace distill::device
