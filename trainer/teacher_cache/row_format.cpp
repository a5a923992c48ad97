#include "trainer/teacher_cache/row_format.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cmath>
#include <cstring>

#include "losses/option_ranges.h"
#include "losses/rows/sparse_args.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::teacher_cache {
namespace {

constexpr double kInt8Max = 127;
constexpr double kFloat8Max = 448; // of e4m3
constexpr double kTiny = 1e-30; // scale of a row of zeros

int64_t groups(const RowFormat& format) {
  return (format.hidden_size + RowFormat::kGroup - 1) / RowFormat::kGroup;
}

// Returns the largest magnitude along the last dimension; abs() has no meta kernel.
at::Tensor largest(const at::Tensor& values, bool keepdim) {
  return at::maximum(values.amax(-1, keepdim), values.amin(-1, keepdim).neg());
}

at::Tensor encode_int8(const RowFormat& format, const at::Tensor& hidden_RG) {
  const int64_t rows = hidden_RG.size(0), padded = groups(format) * RowFormat::kGroup;
  const at::Tensor values_RG = at::constant_pad_nd(hidden_RG.to(at::kFloat), {0, padded - format.hidden_size});
  const at::Tensor values = values_RG.view({rows, groups(format), RowFormat::kGroup});
  // Scales are rounded up to bfloat16 (by a part in 128), so that no value is cut off at 127.
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

// Tells whether none of `count` floating-point numbers has all bits of the exponent set, `exponent`, as infinity and
// NaN have.
template <typename Bits>
bool all_finite(const uint8_t* bytes, int64_t count, Bits exponent) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

bool is_finite(const RowFormat& format, const uint8_t* row) {
  constexpr uint16_t kBFloat16 = 0x7f80;
  constexpr uint32_t kFloat32 = 0x7f800000;
  constexpr uint8_t kFloat8Nan = 0x7f; // e4m3 has no infinity, and one NaN
  switch (format.encoding) {
    case Encoding::kFloat32:
      return all_finite(row, format.hidden_size, kFloat32);
    case Encoding::kBFloat16:
      return all_finite(row, format.hidden_size, kBFloat16);
    case Encoding::kInt8:
      return all_finite(row + format.hidden_size, groups(format), kBFloat16);
    case Encoding::kFloat8:
      return all_finite(row, format.hidden_size, kFloat8Nan) && all_finite(row + format.hidden_size, 1, kFloat32);
    case Encoding::kFloat16:
      break;
  }
  return true;
}

} // namespace

std::string new_row_problem(const RowFormat& format, const uint8_t* row) {
  if (format.is_sparse()) {
    return row_problem(format, row);
  }
  return is_finite(format, row) ? "" : "expected a hidden state of finite numbers, found others";
}

at::Tensor bytes_of(const at::Tensor& values_RX) {
  return values_RX.contiguous().view(at::kByte);
}

at::Tensor values_of(const at::Tensor& rows_RW, int64_t begin, int64_t count, at::ScalarType dtype) {
  // This must be a copy: a single row is contiguous as it is, at an offset that may not fit the dtype.
  return rows_RW.narrow(1, begin, count).clone(at::MemoryFormat::Contiguous).view(dtype);
}

void check_rows_shape(const RowFormat& format, const at::Tensor& rows_RW) {
  TORCH_CHECK(
      rows_RW.dim() == 2 && rows_RW.size(1) == format.row_bytes() && rows_RW.scalar_type() == at::kByte,
      "teacher rows: expected uint8 [R, ", format.row_bytes(), "], found ", rows_RW.scalar_type(), " ",
      rows_RW.sizes());
}

std::string describe(const RowFormat& format) {
  if (format.kind == losses::TeacherKind::kTopK) {
    return absl::StrFormat(
        "the %d most probable tokens of %d and the probability of the others, in %s, at temperature %g", format.entries,
        losses::count_columns(format.column_ranges()), base::enum_name(format.encoding), format.temperature);
  }
  if (format.kind == losses::TeacherKind::kSampled) {
    return absl::StrFormat(
        "%d draws from %d tokens with exponent %g and seed %d, at temperature %g", format.entries,
        losses::count_columns(format.column_ranges()), format.exponent, format.seed, format.temperature);
  }
  return absl::StrFormat("hidden states of %d in %s", format.hidden_size, base::enum_name(format.encoding));
}

absl::Status validate(const RowFormat& format) {
  const auto expect = [](bool fits, const char* key, const std::string& expected) {
    return fits ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(key, ": expected ", expected));
  };
  absl::Status status;
  if (!format.is_sparse()) {
    status.Update(expect(format.kind == losses::TeacherKind::kHidden, "kind", "hidden, topk or sampled"));
    status.Update(expect(format.encoding != Encoding::kFloat16, "encoding", "float32, bfloat16, int8 or float8"));
    status.Update(expect(format.hidden_size > 0, "hidden_size", "at least 1"));
    return status;
  }
  const bool topk = format.kind == losses::TeacherKind::kTopK;
  status.Update(expect(
      losses::are_columns(format.ranges, format.columns), "ranges",
      absl::StrCat("ascending ranges of ids below ", format.columns)));
  status.Update(expect(
      format.encoding == Encoding::kFloat32 || (topk && format.encoding == Encoding::kFloat16), "encoding",
      topk ? "float16 or float32 of log-probabilities" : "float32 of the weights of samples"));
  status.Update(expect(
      format.columns > 0 && format.columns < kMaxColumns, "columns",
      absl::StrCat("an integer from 1 to ", kMaxColumns - 1)));
  const int64_t most =
      topk ? std::min(losses::kMaxEntries, losses::count_columns(format.column_ranges())) : losses::kMaxEntries;
  status.Update(
      expect(format.entries > 0 && format.entries <= most, "entries", absl::StrCat("an integer from 1 to ", most)));
  constexpr losses::RealRange kTemperatures = losses::range_of(&losses::LossOptions::temperature);
  constexpr losses::RealRange kSoftcaps = losses::range_of(&losses::LossOptions::teacher_softcap);
  status.Update(expect(contains(kTemperatures, format.temperature), "temperature", losses::expectation(kTemperatures)));
  status.Update(expect(contains(kSoftcaps, format.softcap), "softcap", losses::expectation(kSoftcaps)));
  status.Update(expect(format.exponent > 0 && format.exponent <= 1, "exponent", "a number in (0, 1]"));
  return status;
}

int64_t RowFormat::row_bytes() const {
  if (is_sparse()) {
    return sparse_row_bytes(*this);
  }
  switch (encoding) {
    case Encoding::kFloat32:
      return 4 * hidden_size;
    case Encoding::kBFloat16:
      return 2 * hidden_size;
    case Encoding::kInt8:
      return hidden_size + 2 * groups(*this);
    case Encoding::kFloat8:
      return hidden_size + static_cast<int64_t>(sizeof(float));
    case Encoding::kFloat16:
      break;
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
    case Encoding::kFloat16:
      break;
  }
  TORCH_CHECK(false, "unknown encoding ", static_cast<int>(format.encoding));
}

at::Tensor decode(const RowFormat& format, const at::Tensor& rows_RW, at::ScalarType dtype) {
  check_rows_shape(format, rows_RW);
  switch (format.encoding) {
    case Encoding::kFloat32:
      return rows_RW.view(at::kFloat).to(dtype);
    case Encoding::kBFloat16:
      return rows_RW.view(at::kBFloat16).to(dtype);
    case Encoding::kInt8:
      return decode_int8(format, rows_RW).to(dtype);
    case Encoding::kFloat8:
      return decode_float8(format, rows_RW).to(dtype);
    case Encoding::kFloat16:
      break;
  }
  TORCH_CHECK(false, "unknown encoding ", static_cast<int>(format.encoding));
}

} // namespace distill::teacher_cache
