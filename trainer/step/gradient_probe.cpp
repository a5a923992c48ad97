#include "trainer/step/gradient_probe.h"

#include <cmath>

#include "trainer/device/memory_tracker.h"

namespace distill::trainer {
namespace {

constexpr int64_t kStride = 61; // a prime: no row length is a multiple of it

at::Tensor sample(const sharding::UnitShard& unit) {
  return unit.gradient.slice(0, 0, unit.gradient.numel(), kStride);
}

} // namespace

GradientProbe::GradientProbe(sharding::ModelShards& model) {
  const device::LabelScope label(device::Category::kGradients);
  for (int64_t i = 0; i < model.num_units(); ++i) {
    samples_.push_back(sample(model.unit(i)).clone());
  }
}

at::Tensor GradientProbe::products(sharding::ModelShards& model) const {
  at::Tensor products = at::zeros({kProducts}, samples_.front().options().dtype(at::kDouble));
  for (size_t i = 0; i < samples_.size(); ++i) {
    const at::Tensor earlier = samples_[i].to(at::kDouble);
    const at::Tensor later = sample(model.unit(static_cast<int64_t>(i))).to(at::kDouble);
    products[kDot].add_((earlier * later).sum());
    products[kEarlierSquare].add_((earlier * earlier).sum());
    products[kLaterSquare].add_((later * later).sum());
  }
  return products;
}

double cosine(double dot, double earlier_square, double later_square) {
  return dot / std::sqrt(earlier_square * later_square);
}

} // namespace distill::trainer
