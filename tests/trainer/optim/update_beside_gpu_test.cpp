#include "trainer/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace distill::optim {
namespace {

models::ModelConfig small_config() {
  models::ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 5003;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.num_layers = 4;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.max_position_embeddings = 64;
  return config;
}

class UpdateBesideGpuTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(5);
  }

  // The same master weights every time, in host memory or on the device.
  static std::unique_ptr<sharding::ModelShards> make_model(std::shared_ptr<device::HostSlab> slab) {
    sharding::ShardOptions options;
    options.device = at::Device(at::kCUDA, 0);
    options.compute_dtype = GetParam();
    options.trainable = true;
    options.host_state = std::move(slab);
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

  // The compute stream is busy before each update and uses units right after it; memory of gradients that are freed is
  // written to at once.
  static void expect_the_bits_of_the_compute_stream(
      std::unique_ptr<sharding::ModelShards> model, config::OptimizerSection options) {
    auto reference = make_model(nullptr);
    options.weight_decay = 0.1;
    AdamW optimizer(*model, options, /*piece=*/1 << 16);
    options.overlap_update = false;
    AdamW reference_optimizer(*reference, options);
    for (int step = 0; step < 8; ++step) {
      optimizer.fetch_ahead();
      keep_busy();
      for (int64_t i = 0; i < model->num_units(); ++i) {
        model->unit(i).gradient = at::randn({model->unit(i).shard.numel}, at::kCUDA);
        if (step == 3 && i == 2) { // is skipped
          model->unit(i).gradient[5] = std::nan("");
        }
        reference->unit(i).gradient = model->unit(i).gradient.clone();
      }
      const GradNorm norm = grad_norm_of_square(grad_norm_square(*model), 1.0);
      optimizer.step(0.01 * (step + 1), norm);
      model->drop_gradients();
      reference_optimizer.step(0.01 * (step + 1), norm);
      reference->drop_gradients();
      at::Tensor same = at::ones({}, at::TensorOptions().dtype(at::kBool).device(at::kCUDA));
      for (int64_t i = 0; i < model->num_units(); ++i) {
        const at::Tensor weights = model->weights(i);
        const at::Tensor overwrites = at::full({model->unit(i).shard.numel}, NAN, at::kCUDA);
        same.logical_and_(weights.eq(reference->weights(i)).all());
      }
      EXPECT_TRUE(same.item<bool>()) << step;
    }
    optimizer.wait();
    for (int64_t i = 0; i < model->num_units(); ++i) {
      EXPECT_TRUE(at::equal(model->unit(i).master.cpu(), reference->unit(i).master.cpu())) << i;
      EXPECT_TRUE(at::equal(optimizer.moments(i).exp_avg.cpu(), reference_optimizer.moments(i).exp_avg.cpu())) << i;
      EXPECT_TRUE(at::equal(optimizer.moments(i).exp_avg_sq.cpu(), reference_optimizer.moments(i).exp_avg_sq.cpu()))
          << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeDtype, UpdateBesideGpuTest, testing::Values(at::kBFloat16, at::kFloat));

TEST_P(UpdateBesideGpuTest, StateInHostMemoryPassesThroughTheDeviceBitForBit) {
  const auto slab = device::HostSlab::allocate(int64_t{256} << 20, at::Device(at::kCUDA, 0), 1, "test");
  ASSERT_TRUE(slab.ok()) << slab.status();
  expect_the_bits_of_the_compute_stream(make_model(*slab), {});
}

TEST_P(UpdateBesideGpuTest, StateOnTheDeviceIsUpdatedBitForBitOnAnyNumberOfMultiprocessors) {
  for (const int64_t ctas : {1, 16, 1024}) {
    config::OptimizerSection options;
    options.overlap_ctas = ctas;
    expect_the_bits_of_the_compute_stream(make_model(nullptr), options);
  }
}

} // namespace
} // namespace distill::optim
