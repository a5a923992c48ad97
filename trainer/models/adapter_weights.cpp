#include "trainer/models/adapter_weights.h"

#include <cmath>

#include "trainer/models/adapter.h"
#include "trainer/models/ops/normal_math.h"
#include "trainer/models/random_key.h"

namespace distill::models {
namespace {

class InitialAdapter : public WeightSource {
 public:
  InitialAdapter(std::shared_ptr<const WeightSource> base, uint64_t seed) : base_(std::move(base)), seed_(seed) {}

  absl::Status status() const override {
    return base_->status();
  }

 protected:
  void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    if (piece.param->adapter) {
      dst.zero_();
    } else if (piece.param->name.ends_with(kLoraA)) {
      fill_uniform(
          random_key(seed_, piece.part->hf_name), 1 / std::sqrt(static_cast<double>(piece.param->shape[1])), first,
          dst);
    } else {
      copy_part(*base_, *piece.param, *piece.part, first, std::move(dst));
    }
  }

 private:
  static void fill_uniform(uint64_t key, double bound, int64_t first, const at::Tensor& dst) {
    const at::Tensor values = at::empty({dst.numel()}, at::kFloat);
    float* out = values.mutable_data_ptr<float>();
    const int64_t last = first + dst.numel();
    for (int64_t group = first / kNormalGroup; group * kNormalGroup < last; ++group) {
      uint32_t words[kNormalGroup];
      philox(key, static_cast<uint64_t>(group), words);
      for (int64_t i = std::max(first, group * kNormalGroup); i < std::min(last, (group + 1) * kNormalGroup); ++i) {
        const double unit = (static_cast<double>(words[i - group * kNormalGroup]) + 0.5) * 0x1p-32; // (0, 1)
        out[i - first] = static_cast<float>((2 * unit - 1) * bound);
      }
    }
    at::Tensor(dst).copy_(values);
  }

  std::shared_ptr<const WeightSource> base_;
  uint64_t seed_;
};

} // namespace

std::unique_ptr<WeightSource> initial_adapter(std::shared_ptr<const WeightSource> base, uint64_t seed) {
  return std::make_unique<InitialAdapter>(std::move(base), seed);
}

void copy_part(
    const WeightSource& source, const ParamLayout& param, const ParamPart& part, int64_t first, at::Tensor dst) {
  ParamLayout own = param; // of this tensor
  own.offset = 0;
  own.parts = {part};
  own.parts.front().first_row = 0;
  if (part.rows != param.shape.front()) {
    own.shape.front() = part.rows;
    own.groups = own.groups_per_token = 1;
  }
  UnitLayout alone;
  alone.numel = own.numel();
  alone.params = {std::move(own)};
  source.copy_range(alone, first, std::move(dst));
}

} // namespace distill::models
