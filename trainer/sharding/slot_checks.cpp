#include "trainer/sharding/slot_checks.h"

namespace distill::sharding {
namespace {

constexpr int64_t kWordsPerSum = 16; // shards are multiples of 64 bytes, so that units divide evenly

} // namespace

SlotChecks::SlotChecks(at::Device device)
    : failed_unit_(at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(device))) {}

void SlotChecks::name_units(const void* model, const std::string& name, const std::vector<std::string>& units) {
  for (size_t i = 0; i < units.size(); ++i) {
    units_.push_back({{model, static_cast<int64_t>(i)}, absl::StrCat(name, " ", units[i]), {}});
  }
}

void SlotChecks::check(UnitKey key, const at::Tensor& whole) {
  const auto unit = std::find_if(units_.begin(), units_.end(), [&](const Unit& other) { return other.key == key; });
  TORCH_CHECK(unit != units_.end(), "slot checks know no unit ", key.unit, " of this model");
  const at::Tensor sums = whole.view(at::kInt).view({-1, kWordsPerSum}).sum(1, /*keepdim=*/false, at::kLong);
  if (!unit->checksums.defined()) {
    unit->checksums = sums;
    return;
  }
  const at::Tensor differs = sums.ne(unit->checksums).any().logical_and(failed_unit_.eq(0));
  failed_unit_.masked_fill_(differs, unit - units_.begin() + 1);
}

void SlotChecks::forget(const void* model) {
  for (Unit& unit : units_) {
    if (unit.key.model == model) {
      unit.checksums.reset();
    }
  }
}

std::string SlotChecks::describe(int64_t failed_unit) const {
  const auto index = static_cast<size_t>(failed_unit - 1);
  return index < units_.size() ? units_[index].name : absl::StrCat("unit ", failed_unit);
}

} // namespace distill::sharding
