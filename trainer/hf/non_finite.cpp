#include "trainer/hf/non_finite.h"

namespace distill::hf {
namespace {

// An exponent of all ones: NaN or infinite. Without a branch, so that the compiler vectorises the loop.
template <typename Bits>
bool any_non_finite(const Bits* values, int64_t count, Bits exponent) {
  Bits any = 0;
  for (int64_t i = 0; i < count; ++i) {
    any = static_cast<Bits>(any | static_cast<Bits>(-static_cast<Bits>((values[i] & exponent) == exponent)));
  }
  return any != 0;
}

template <typename Bits>
void add(const at::Tensor& values, Bits exponent, int64_t first_index, NonFinite& found) {
  const auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  const int64_t count = values.numel();
  if (!any_non_finite(bits, count, exponent)) {
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if ((bits[i] & exponent) == exponent) {
      found.first = found.count == 0 ? first_index + i : found.first;
      found.count += 1;
    }
  }
}

} // namespace

void add_non_finite(const at::Tensor& values, int64_t first_index, NonFinite& found) {
  TORCH_CHECK(values.is_cpu() && values.is_contiguous(), "a contiguous CPU tensor is expected");
  switch (values.scalar_type()) {
    case at::kFloat:
      return add<uint32_t>(values, 0x7f800000U, first_index, found);
    case at::kBFloat16:
      return add<uint16_t>(values, 0x7f80U, first_index, found);
    case at::kHalf:
      return add<uint16_t>(values, 0x7c00U, first_index, found);
    case at::kDouble:
      return add<uint64_t>(values, 0x7ff0000000000000U, first_index, found);
    default:
      TORCH_CHECK(false, "a floating-point tensor is expected, found ", values.scalar_type());
  }
}

} // namespace distill::hf
