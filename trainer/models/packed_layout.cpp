#include "trainer/models/packed_layout.h"

#include <absl/strings/str_cat.h>

#include "trainer/models/ops/float8.h"

namespace distill::models {
namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24; // of the rows that are rounded at a time
constexpr int64_t kAlignment = 128; // bytes; a parameter's start
constexpr int64_t kScaleBytes = sizeof(float);

int64_t bytes_of(const ParamLayout& param) {
  return param.numel() * static_cast<int64_t>(c10::elementSize(*param.stored));
}

void append(UnitLayout& unit, ParamLayout param) {
  param.offset = unit.numel;
  unit.numel += (bytes_of(param) + kAlignment - 1) / kAlignment * kAlignment;
  unit.params.push_back(std::move(param));
}

struct Range {
  int64_t begin = 0, end = 0;

  int64_t size() const {
    return end - begin;
  }
  // Returns the overlap of two ranges; its size is 0 if there is none.
  Range overlap(int64_t other_begin, int64_t other_end) const {
    const int64_t first = std::max(begin, other_begin);
    return {first, std::max(first, std::min(end, other_end))};
  }
  // Returns the rows of `row_bytes` bytes each of which some bytes are in this range; the first begins at byte `at`.
  Range rows_at(int64_t at, int64_t rows, int64_t row_bytes) const {
    const Range own = overlap(at, at + rows * row_bytes);
    if (own.size() == 0) {
      return {};
    }
    return {(own.begin - at) / row_bytes, (own.end - at + row_bytes - 1) / row_bytes};
  }
};

// Returns the range from the first scale of a packed unit to the end of the last one.
Range range_of_scales(const UnitLayout& packed) {
  Range found{packed.numel, 0};
  for (const ParamLayout& param : packed.params) {
    if (param.name.ends_with(kScaleSuffix)) {
      found = {std::min(found.begin, param.offset), std::max(found.end, param.offset + bytes_of(param))};
    }
  }
  return found;
}

// Copies the part of `values`, whose place in the unit begins at byte `at`, that lies in the range.
void copy_overlap(const Range& range, int64_t at, const at::Tensor& values, at::Tensor& bytes) {
  const at::Tensor flat = values.flatten().view(at::kByte);
  const Range own = range.overlap(at, at + flat.numel());
  if (own.size() > 0) {
    bytes.narrow(0, own.begin - range.begin, own.size()).copy_(flat.narrow(0, own.begin - at, own.size()));
  }
}

} // namespace

UnitLayout packed_layout(const UnitLayout& layout, const Float8Products& float8, at::ScalarType compute_dtype) {
  if (layout.kind != UnitKind::kBlock || !float8.any_of(layout.block)) {
    return layout;
  }
  const auto in_float8 = [&](const ParamLayout& param) { return float8.contains(layout.block, param.name); };
  UnitLayout packed = layout;
  packed.params.clear();
  packed.numel = 0;
  for (ParamLayout param : layout.params) {
    if (!param.is_matrix) {
      param.stored = compute_dtype;
      append(packed, std::move(param));
    }
  }
  for (const ParamLayout& param : layout.params) {
    if (in_float8(param)) {
      ParamLayout scale;
      scale.name = absl::StrCat(param.name, kScaleSuffix);
      scale.shape = {param.shape[0]};
      scale.stored = at::kFloat;
      append(packed, std::move(scale));
    }
  }
  for (ParamLayout param : layout.params) {
    if (param.is_matrix) {
      param.stored = in_float8(param) ? at::kFloat8_e4m3fn : compute_dtype;
      append(packed, std::move(param));
    }
  }
  return packed;
}

void read_packed(
    const WeightSource& source, const ModelConfig& config, const UnitLayout& packed, int64_t begin, at::Tensor bytes,
    const TakeLargest& take_largest) {
  TORCH_CHECK(
      bytes.dim() == 1 && bytes.is_contiguous() && bytes.scalar_type() == at::kByte,
      "read_packed: contiguous bytes are expected, found ", bytes.sizes(), " of dtype ", bytes.scalar_type());
  const UnitLayout elements = block_layout(config, packed.block);
  const Range range{begin, begin + bytes.numel()};
  const auto staged = bytes.options().dtype(config.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
  const Range scales_range = range_of_scales(packed);
  const at::Tensor scales = at::zeros({scales_range.size() / kScaleBytes}, bytes.options().dtype(at::kFloat));
  bytes.zero_();
  for (const ParamLayout& param : packed.params) {
    const ParamLayout* from = elements.find(param.name);
    if (from == nullptr) {
      continue; // a scale, which is made with its matrix
    }
    if (*param.stored != at::kFloat8_e4m3fn) {
      const auto size = static_cast<int64_t>(c10::elementSize(*param.stored));
      const Range own = range.overlap(param.offset, param.offset + bytes_of(param));
      if (own.size() > 0) {
        source.copy_range(
            elements, from->offset + (own.begin - param.offset) / size,
            bytes.narrow(0, own.begin - begin, own.size()).view(*param.stored));
      }
      continue;
    }
    const int64_t rows = param.shape[0], columns = param.shape[1];
    const int64_t scales_at = packed.find(absl::StrCat(param.name, kScaleSuffix))->offset;
    const auto round_rows = [&](int64_t first, int64_t last) {
      const int64_t most = std::max<int64_t>(1, kStagingElements / columns);
      for (int64_t row = first; row < last; row += most) {
        const at::Tensor staging = at::empty({std::min(most, last - row), columns}, staged);
        source.copy_range(elements, from->offset + row * columns, staging.flatten());
        const Float8Rows rounded = float8_rows(staging);
        copy_overlap(range, param.offset + row * columns, rounded.values_RC, bytes);
        scales.narrow(0, (scales_at - scales_range.begin) / kScaleBytes + row, staging.size(0)).copy_(rounded.scale_R);
      }
    };
    const Range values = range.rows_at(param.offset, rows, columns);
    round_rows(values.begin, values.end);
    if (!take_largest) {
      const Range scaled = range.rows_at(scales_at, rows, kScaleBytes);
      round_rows(scaled.begin, std::min(scaled.end, values.begin));
      round_rows(std::max(scaled.begin, values.end), scaled.end);
    }
  }
  if (take_largest) {
    take_largest(scales);
  }
  copy_overlap(range, scales_range.begin, scales, bytes);
}

} // namespace distill::models
