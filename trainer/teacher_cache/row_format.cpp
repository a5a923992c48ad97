#include "trainer/teacher_cache/row_format.h"

#include <ATen/ATen.h>

namespace distill::teacher_cache {
namespace {

constexpr double kInt8Max = 127;
constexpr double kFloat8Max = 448; // of e4m3
constexpr double kTiny = 1e-30; // scale of a row of zeros

int64_t groups(const RowFormat& format) {
  return (format.hidden_size + RowFormat::kGroup - 1) / RowFormat::kGroup;
}

at::Tensor bytes_of(const at::Tensor& values_RX) {
  return values_RX.contiguous().view(at::kByte);
}

// The bytes [begin, begin + count) of each row as values of a dtype.
at::Tensor values_of(const at::Tensor& rows_RW, int64_t begin, int64_t count, at::ScalarType dtype) {
  return rows_RW.narrow(1, begin, count).contiguous().view(dtype);
}

// The largest magnitude along the last dimension; abs() has no meta kernel.
at::Tensor largest(const at::Tensor& values, bool keepdim) {
  return at::maximum(values.amax(-1, keepdim), values.amin(-1, keepdim).neg());
}

at::Tensor encode_int8(const RowFormat& format, const at::Tensor& hidden_RG) {
  const int64_t rows = hidden_RG.size(0), padded = groups(format) * RowFormat::kGroup;
  const at::Tensor values_RG = at::constant_pad_nd(hidden_RG.to(at::kFloat), {0, padded - format.hidden_size});
  const at::Tensor values = values_RG.view({rows, groups(format), RowFormat::kGroup});
  // Rounded up to bfloat16 (a part in 128), so that no value is cut off at 127.
  const at::Tensor scales =
      (largest(values, /*keepdim=*/false) * ((1 + 1.0 / 128) / kInt8Max)).clamp_min(kTiny).to(at::kBFloat16);
  const at::Tensor steps = values.div(scales.to(at::kFloat).unsqueeze(-1)).round().clamp(-kInt8Max, kInt8Max);
  const at::Tensor stored = steps.to(at::kChar).view({rows, padded}).narrow(1, 0, format.hidden_size);
  return at::cat({bytes_of(stored), bytes_of(scales)}, 1);
}

at::Tensor decode_int8(const RowFormat& format, const at::Tensor& rows_RW) {
  const int64_t rows = rows_RW.size(0), padded = groups(format) * RowFormat::kGroup;
  const at::Tensor steps_RG = values_of(rows_RW, 0, format.hidden_size, at::kChar).to(at::kFloat);
  const at::Tensor scales = values_of(rows_RW, format.hidden_size, 2 * groups(format), at::kBFloat16).to(at::kFloat);
  const at::Tensor steps =
      at::constant_pad_nd(steps_RG, {0, padded - format.hidden_size}).view({rows, groups(format), RowFormat::kGroup});
  return steps.mul(scales.unsqueeze(-1)).view({rows, padded}).narrow(1, 0, format.hidden_size);
}

at::Tensor encode_float8(const at::Tensor& hidden_RG) {
  const at::Tensor values_RG = hidden_RG.to(at::kFloat);
  const at::Tensor scales_R1 = (largest(values_RG, /*keepdim=*/true) / kFloat8Max).clamp_min(kTiny);
  const at::Tensor stored_RG = values_RG.div(scales_R1).clamp(-kFloat8Max, kFloat8Max).to(at::kFloat8_e4m3fn);
  return at::cat({bytes_of(stored_RG), bytes_of(scales_R1)}, 1);
}

at::Tensor decode_float8(const RowFormat& format, const at::Tensor& rows_RW) {
  const at::Tensor values_RG = values_of(rows_RW, 0, format.hidden_size, at::kFloat8_e4m3fn).to(at::kFloat);
  return values_RG.mul(values_of(rows_RW, format.hidden_size, sizeof(float), at::kFloat));
}

} // namespace

int64_t RowFormat::row_bytes() const {
  switch (encoding) {
    case Encoding::kFloat32:
      return 4 * hidden_size;
    case Encoding::kBFloat16:
      return 2 * hidden_size;
    case Encoding::kInt8:
      return hidden_size + 2 * groups(*this);
    case Encoding::kFloat8:
      return hidden_size + static_cast<int64_t>(sizeof(float));
  }
  TORCH_CHECK(false, "unknown encoding ", static_cast<int>(encoding));
}

std::optional<Encoding> exact_encoding(at::ScalarType dtype) {
  return dtype == at::kFloat   ? std::optional(Encoding::kFloat32)
      : dtype == at::kBFloat16 ? std::optional(Encoding::kBFloat16)
                               : std::nullopt;
}

at::Tensor encode(const RowFormat& format, const at::Tensor& hidden_RG) {
  TORCH_CHECK(
      hidden_RG.dim() == 2 && hidden_RG.size(1) == format.hidden_size, "teacher rows: expected hidden states [R, ",
      format.hidden_size, "], found ", hidden_RG.sizes());
  switch (format.encoding) {
    case Encoding::kFloat32:
      return bytes_of(hidden_RG.to(at::kFloat));
    case Encoding::kBFloat16:
      return bytes_of(hidden_RG.to(at::kBFloat16));
    case Encoding::kInt8:
      return encode_int8(format, hidden_RG);
    case Encoding::kFloat8:
      return encode_float8(hidden_RG);
  }
  TORCH_CHECK(false, "unknown encoding ", static_cast<int>(format.encoding));
}

at::Tensor decode(const RowFormat& format, const at::Tensor& rows_RW, at::ScalarType dtype) {
  TORCH_CHECK(
      rows_RW.dim() == 2 && rows_RW.size(1) == format.row_bytes() && rows_RW.scalar_type() == at::kByte,
      "teacher rows: expected uint8 [R, ", format.row_bytes(), "], found ", rows_RW.scalar_type(), " ",
      rows_RW.sizes());
  switch (format.encoding) {
    case Encoding::kFloat32:
      return rows_RW.view(at::kFloat).to(dtype);
    case Encoding::kBFloat16:
      return rows_RW.view(at::kBFloat16).to(dtype);
    case Encoding::kInt8:
      return decode_int8(format, rows_RW).to(dtype);
    case Encoding::kFloat8:
      return decode_float8(format, rows_RW).to(dtype);
  }
  TORCH_CHECK(false, "unknown encoding ", static_cast<int>(format.encoding));
}

} // namespace distill::teacher_cache
