#include "trainer/optim/host_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/models/random_weights.h"
#include "trainer/optim/adamw.h"

namespace distill::optim {
namespace {

models::ModelConfig small_config() {
  return models::llama_like(
      {.vocab = 5003,
       .hidden = 256,
       .ffn = 704,
       .layers = 4,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .max_positions = 64});
}

class HostStateGpuTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(5);
  }

  // Models with the same master weights, whose state is in host memory or on the device.
  static std::unique_ptr<sharding::ModelShards> make_model(sharding::StateMemory state) {
    sharding::ShardOptions options;
    options.device = at::Device(at::kCUDA, 0);
    options.compute_dtype = GetParam();
    options.trainable = true;
    options.state = std::move(state);
    auto model = std::make_unique<sharding::ModelShards>(small_config(), options);
    model->load(*models::random_weights(small_config(), /*seed=*/7));
    return model;
  }

  static void keep_busy() {
    const at::Tensor x = at::randn({2048, 2048}, at::kCUDA);
    for (int i = 0; i < 20; ++i) {
      at::mm(x, x);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeDtype, HostStateGpuTest, testing::Values(at::kBFloat16, at::kFloat));

// The compute stream is busy before each update and uses units right after it; memory of gradients that are freed is
// written to at once.
void expect_same_steps(
    sharding::ModelShards* host, sharding::ModelShards* device, const std::function<void()>& keep_busy,
    config::RoundedDtype moments) {
  config::OptimizerSection options;
  options.moments = moments;
  options.weight_decay = 0.1;
  AdamW host_optimizer(*host, options, /*piece=*/1 << 16), device_optimizer(*device, options);
  for (int step = 0; step < 8; ++step) {
    keep_busy();
    for (int64_t i = 0; i < host->num_units(); ++i) {
      host->unit(i).gradient = at::randn({host->unit(i).shard.numel}, at::kCUDA);
      if (step == 3 && i == 2) { // is skipped
        host->unit(i).gradient[5] = std::nan("");
      }
      device->unit(i).gradient = host->unit(i).gradient.clone();
    }
    if (step % 2 == 0) { // as in a backward pass; otherwise the step itself does what is left
      host->reduce(host->num_units() - 1, /*last=*/true);
      host->reduce(2, /*last=*/true);
    }
    const GradNorm norm = grad_norm_of_square(grad_norm_square(*host), 1.0);
    host_optimizer.step(0.01 * (step + 1), norm);
    host->drop_gradients();
    device_optimizer.step(0.01 * (step + 1), norm);
    at::Tensor same = at::ones({}, at::TensorOptions().dtype(at::kBool).device(at::kCUDA));
    for (int64_t i = 0; i < host->num_units(); ++i) {
      const at::Tensor weights = host->weights(i);
      const at::Tensor overwrites = at::full({host->unit(i).shard.numel}, NAN, at::kCUDA);
      same.logical_and_(weights.eq(device->weights(i)).all());
    }
    device->drop_gradients();
    EXPECT_TRUE(same.item<bool>()) << step;
  }
  host_optimizer.wait();
  for (int64_t i = 0; i < host->num_units(); ++i) {
    EXPECT_TRUE(at::equal(host->unit(i).master.cpu(), device->unit(i).master.cpu())) << i;
    EXPECT_TRUE(at::equal(host_optimizer.moments(i).exp_avg.cpu(), device_optimizer.moments(i).exp_avg.cpu())) << i;
    EXPECT_TRUE(at::equal(host_optimizer.moments(i).exp_avg_sq.cpu(), device_optimizer.moments(i).exp_avg_sq.cpu()))
        << i;
  }
}

TEST_P(HostStateGpuTest, IsUpdatedBitForBitBesideTheComputeStream) {
  using enum models::StatePlace;
  for (const auto& blocks : std::vector<std::vector<models::StatePlace>>{
           {kHost, kHost, kHost, kHost},
           {kDevice, kHost, kHost, kDevice},
           {kHost, kDevice, kDevice, kHost},
           {kCpu, kCpu, kCpu, kCpu},
           {kDevice, kCpu, kHost, kCpu},
           {kCpu, kHost, kCpu, kDevice}}) {
    for (const int64_t stages : {1, 4, 50}) {
      const auto moments = stages == 4 ? config::RoundedDtype::kBFloat16 : config::RoundedDtype::kFloat32;
      const auto slab = device::HostSlab::allocate(int64_t{256} << 20, at::Device(at::kCUDA, 0), 1, "test");
      ASSERT_TRUE(slab.ok()) << slab.status();
      const auto host = make_model({models::places_of_units(blocks, /*tied_embeddings=*/false), *slab, stages});
      const auto device = make_model({});
      expect_same_steps(host.get(), device.get(), keep_busy, moments);
    }
  }
}

} // namespace
} // namespace distill::optim
