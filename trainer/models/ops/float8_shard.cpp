#include "trainer/models/ops/float8_shard.h"

#include <algorithm>
#include <cmath>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/float8_format.h"
#include "trainer/models/ops/float8_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

void check_part(const MatrixPart& part, const at::Tensor& rows_R) {
  TORCH_CHECK(
      part.elements.dim() == 1 && part.elements.is_contiguous() && part.elements.scalar_type() == at::kFloat &&
          part.columns > 0 && part.first >= 0 && rows_R.dim() == 1 && rows_R.scalar_type() == at::kFloat &&
          rows_R.is_contiguous() && part.first + part.elements.numel() <= rows_R.size(0) * part.columns,
      "float8: elements ", part.first, " to ", part.first + part.elements.numel(), " are no part of a matrix of ",
      rows_R.sizes(), " rows of ", part.columns);
}

Float8PartArgs part_args(const MatrixPart& part) {
  return {
      .elements = part.elements.const_data_ptr<float>(),
      .largest = nullptr,
      .scale = nullptr,
      .values = nullptr,
      .first = part.first,
      .count = part.elements.numel(),
      .columns = part.columns};
}

// Calls f(row, begin, count) for each row of the part; `begin` counts from the part's first element.
template <typename F>
void for_each_row(const MatrixPart& part, const F& f) {
  const int64_t end = part.first + part.elements.numel();
  for (int64_t at = part.first; at < end;) {
    const int64_t row = at / part.columns;
    const int64_t next = std::min(end, (row + 1) * part.columns);
    f(row, at - part.first, next - at);
    at = next;
  }
}

} // namespace

void raise_row_magnitudes_(const MatrixPart& part, at::Tensor& largest_R) {
  check_part(part, largest_R);
  if (part.elements.numel() == 0) {
    return;
  }
  if (device::runs_on_cuda(part.elements)) {
    Float8PartArgs args = part_args(part);
    args.largest = largest_R.mutable_data_ptr<float>();
    run_kernel("float8_row_magnitudes", launch_float8_row_magnitudes, args, part.elements.device());
  } else if (!part.elements.is_meta()) {
    const float* elements = part.elements.const_data_ptr<float>();
    float* largest = largest_R.mutable_data_ptr<float>();
    for_each_row(part, [&](int64_t row, int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) {
        largest[row] = std::max(largest[row], std::abs(elements[i]));
      }
    });
  }
}

void magnitudes_to_scales_(at::Tensor& largest_R) {
  // 448 is 1.75 * 2^8: a mantissa above that of 1.75 carries into the exponent. No division, which devices round
  // differently.
  largest_R.clamp_min_(kFloat8Max * kFloat8SmallestPower);
  largest_R.view(at::kInt).add_(0x001fffff).bitwise_and_(0x7f800000);
  largest_R.mul_(0x1p-8);
}

void round_matrix_part(const MatrixPart& part, const at::Tensor& scale_R, at::Tensor& values) {
  check_part(part, scale_R);
  TORCH_CHECK(
      values.dim() == 1 && values.is_contiguous() && values.scalar_type() == at::kByte &&
          values.numel() == part.elements.numel(),
      "float8: ", part.elements.numel(), " contiguous bytes are expected, found ", values.sizes(), " of dtype ",
      values.scalar_type());
  if (part.elements.numel() == 0) {
    return;
  }
  if (device::runs_on_cuda(part.elements)) {
    Float8PartArgs args = part_args(part);
    args.scale = scale_R.const_data_ptr<float>();
    args.values = values.mutable_data_ptr();
    run_kernel("float8_round_part", launch_float8_round_part, args, part.elements.device());
  } else if (!part.elements.is_meta()) {
    const float* elements = part.elements.const_data_ptr<float>();
    const float* scale = scale_R.const_data_ptr<float>();
    at::Tensor typed = values.view(at::kFloat8_e4m3fn);
    auto* rounded = typed.mutable_data_ptr<c10::Float8_e4m3fn>();
    for_each_row(part, [&](int64_t row, int64_t begin, int64_t count) {
      const float inverse = 1.0F / scale[row];
      for (int64_t i = begin; i < begin + count; ++i) {
        rounded[i] = c10::Float8_e4m3fn(std::clamp(elements[i] * inverse, -kFloat8Max, kFloat8Max));
      }
    });
  }
}

} // namespace distill::models
