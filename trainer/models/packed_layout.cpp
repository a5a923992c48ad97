#include "trainer/models/packed_layout.h"

#include <absl/strings/str_cat.h>

#include "trainer/models/ops/float8.h"

namespace distill::models {
namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24; // of the rows that are rounded at a time
constexpr int64_t kAlignment = 128; // bytes; a parameter's start

int64_t bytes_of(const ParamLayout& param) {
  return param.numel() * static_cast<int64_t>(c10::elementSize(*param.stored));
}

void append(UnitLayout& unit, ParamLayout param) {
  param.offset = unit.numel;
  unit.numel += (bytes_of(param) + kAlignment - 1) / kAlignment * kAlignment;
  unit.params.push_back(std::move(param));
}

struct ByteRange {
  int64_t begin = 0, end = 0;

  bool overlaps(int64_t other_begin, int64_t other_end) const {
    return other_begin < end && begin < other_end;
  }
};

// Copies the part of `values`, whose place in the unit begins at byte `at`, that lies in the range.
void copy_overlap(const ByteRange& range, int64_t at, const at::Tensor& values, at::Tensor& bytes) {
  const at::Tensor flat = values.flatten().view(at::kByte);
  const int64_t first = std::max(range.begin, at), last = std::min(range.end, at + flat.numel());
  if (first < last) {
    bytes.narrow(0, first - range.begin, last - first).copy_(flat.narrow(0, first - at, last - first));
  }
}

} // namespace

UnitLayout packed_layout(const UnitLayout& layout, const Float8Products& float8, at::ScalarType compute_dtype) {
  if (layout.kind != UnitKind::kBlock || !float8.any_of(layout.block)) {
    return layout;
  }
  const auto in_float8 = [&](const ParamLayout& param) {
    const auto product = base::enum_named<Product>(param.name);
    return product && float8.contains(layout.block, *product);
  };
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
    const WeightSource& source, const ModelConfig& config, const UnitLayout& packed, int64_t begin, at::Tensor bytes) {
  TORCH_CHECK(
      bytes.dim() == 1 && bytes.is_contiguous() && bytes.scalar_type() == at::kByte,
      "read_packed: contiguous bytes are expected, found ", bytes.sizes(), " of dtype ", bytes.scalar_type());
  const UnitLayout elements = block_layout(config, packed.block);
  const ByteRange range{begin, begin + bytes.numel()};
  const auto staged = bytes.options().dtype(config.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
  bytes.zero_();
  for (const ParamLayout& param : packed.params) {
    const ParamLayout* from = elements.find(param.name);
    if (from == nullptr) {
      continue; // a scale, which is made with its matrix
    }
    if (*param.stored != at::kFloat8_e4m3fn) {
      const auto size = static_cast<int64_t>(c10::elementSize(*param.stored));
      const int64_t first = std::max(range.begin, param.offset),
                    last = std::min(range.end, param.offset + bytes_of(param));
      if (first < last) {
        source.copy_range(
            elements, from->offset + (first - param.offset) / size,
            bytes.narrow(0, first - begin, last - first).view(*param.stored));
      }
      continue;
    }
    const ParamLayout& scale = *packed.find(absl::StrCat(param.name, kScaleSuffix));
    const int64_t rows = param.shape[0], columns = param.shape[1];
    const int64_t chunk = std::max<int64_t>(1, kStagingElements / columns);
    for (int64_t row = 0; row < rows; row += chunk) {
      const int64_t count = std::min(chunk, rows - row);
      const int64_t values_at = param.offset + row * columns;
      const int64_t scale_at = scale.offset + row * static_cast<int64_t>(sizeof(float));
      if (!range.overlaps(values_at, values_at + count * columns) &&
          !range.overlaps(scale_at, scale_at + count * static_cast<int64_t>(sizeof(float)))) {
        continue;
      }
      const at::Tensor staging = at::empty({count, columns}, staged);
      source.copy_range(elements, from->offset + row * columns, staging.flatten());
      const Float8Rows rounded = float8_rows(staging);
      copy_overlap(range, values_at, rounded.values_RC, bytes);
      copy_overlap(range, scale_at, rounded.scale_R, bytes);
    }
  }
}

} // namespace distill::models
