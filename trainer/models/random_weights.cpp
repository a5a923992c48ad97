#include "trainer/models/random_weights.h"

#include <ATen/Parallel.h>

#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/normal_kernel.h"
#include "trainer/models/ops/normal_math.h"
#include "trainer/models/random_key.h"

namespace distill::models {
namespace {

class RandomWeights : public WeightSource {
 public:
  RandomWeights(double initializer_range, uint64_t seed) : scale_(static_cast<float>(initializer_range)), seed_(seed) {}

  bool writes_to(at::Device device) const override {
    return device.is_cpu() || device.is_cuda();
  }

 protected:
  void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    if (!piece.param->drawn) {
      dst.fill_(piece.param->initial);
      return;
    }
    const uint64_t key = random_key(seed_, piece.part->hf_name);
    if (dst.is_cuda()) {
      const NormalArgs args{dst.mutable_data_ptr(), dst.numel(), first, key, scale_, element_type(dst.scalar_type())};
      run_kernel("random weights", launch_normal, args, dst.device());
      return;
    }
    constexpr int64_t kChunk = int64_t{1} << 20;
    for (int64_t done = 0; done < dst.numel(); done += kChunk) {
      const int64_t count = std::min(kChunk, dst.numel() - done);
      const at::Tensor values = at::empty({count}, at::kFloat);
      fill(key, first + done, absl::MakeSpan(values.mutable_data_ptr<float>(), static_cast<size_t>(count)));
      dst.narrow(0, done, count).copy_(values);
    }
  }

 private:
  void fill(uint64_t key, int64_t first, absl::Span<float> values) const {
    const int64_t last = first + static_cast<int64_t>(values.size());
    at::parallel_for(first / 4, (last + 3) / 4, /*grain_size=*/4096, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        float normal[kNormalGroup];
        normal_group(key, group, normal);
        for (int64_t i = std::max(first, group * 4); i < std::min(last, group * 4 + 4); ++i) {
          values[static_cast<size_t>(i - first)] = normal[i - group * 4] * scale_;
        }
      }
    });
  }

  float scale_;
  uint64_t seed_;
};

} // namespace

std::unique_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config.initializer_range, seed);
}

} // namespace distill::models
