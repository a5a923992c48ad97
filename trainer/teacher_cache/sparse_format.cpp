#include "trainer/teacher_cache/sparse_format.h"

#include <ATen/ATen.h>
#include <absl/strings/str_format.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace distill::teacher_cache {
namespace {

static_assert(std::endian::native == std::endian::little);

using losses::TeacherKind;

constexpr double kSlack = 1e-2; // of a sum of rounded probabilities

int64_t id_bytes(const RowFormat& format) {
  return format.columns < 0xFFFF ? 2 : format.columns < 0xFFFFFF ? 3 : 4;
}

bool has_weights(const RowFormat& format) {
  return format.kind == TeacherKind::kSampled && format.exponent != 1;
}

at::ScalarType value_type(const RowFormat& format) {
  return format.encoding == Encoding::kFloat16 ? at::kHalf : at::kFloat;
}

int64_t value_bytes(const RowFormat& format) {
  return format.kind == TeacherKind::kTopK || has_weights(format)
      ? static_cast<int64_t>(c10::elementSize(value_type(format)))
      : 0;
}

// Returns the lowest bytes of each id; those of -1 are all ones.
at::Tensor encode_ids(const RowFormat& format, const at::Tensor& ids_RK) {
  const int64_t rows = ids_RK.size(0), entries = ids_RK.size(1), bytes = id_bytes(format);
  return bytes_of(ids_RK).view({rows, entries, 4}).narrow(2, 0, bytes).reshape({rows, entries * bytes});
}

at::Tensor decode_ids(const RowFormat& format, const at::Tensor& rows_RW) {
  const int64_t rows = rows_RW.size(0), bytes = id_bytes(format);
  const at::Tensor stored = rows_RW.narrow(1, 0, format.entries * bytes);
  if (bytes == 4) {
    return stored.contiguous().view(at::kInt);
  }
  const at::Tensor padded =
      at::constant_pad_nd(stored.reshape({rows, format.entries, bytes}), {0, 4 - bytes}).contiguous();
  const at::Tensor ids_RK = padded.view({rows, format.entries * 4}).view(at::kInt);
  const int64_t none = (int64_t{1} << (8 * bytes)) - 1;
  return ids_RK.sub(ids_RK.eq(none).to(at::kInt), none + 1); // to -1
}

at::Tensor decode_values(const RowFormat& format, const at::Tensor& rows_RW) {
  const int64_t begin = format.entries * id_bytes(format);
  return values_of(rows_RW, begin, format.entries * value_bytes(format), value_type(format));
}

at::Tensor decode_tail(const at::Tensor& rows_RW) {
  return values_of(rows_RW, rows_RW.size(1) - 4, 4, at::kFloat).squeeze(1);
}

uint64_t id_at(const uint8_t* at, int64_t bytes) {
  uint64_t id = 0;
  std::memcpy(&id, at, static_cast<size_t>(bytes));
  return id;
}

double value_at(const uint8_t* at, bool half) {
  if (half) {
    uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
  }
  float value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// The ids that a row has had. For each id it remembers the number of the row that named it last.
class SeenIds {
 public:
  explicit SeenIds(int64_t columns) : last_(static_cast<size_t>(columns), -1) {}
  bool again(uint64_t id, int64_t row) {
    const bool seen = last_[id] == row;
    last_[id] = row;
    return seen;
  }

 private:
  std::vector<int64_t> last_;
};

} // namespace

int64_t sparse_row_bytes(const RowFormat& format) {
  const int64_t tail = format.kind == TeacherKind::kTopK ? static_cast<int64_t>(sizeof(float)) : 0;
  return format.entries * (id_bytes(format) + value_bytes(format)) + tail;
}

at::Tensor encode_sparse(const RowFormat& format, const SparseRows& rows) {
  std::vector<at::Tensor> bytes = {encode_ids(format, rows.ids_RK)};
  if (value_bytes(format) > 0) {
    bytes.push_back(bytes_of(rows.values_RK.to(value_type(format))));
  }
  if (format.kind == TeacherKind::kTopK) {
    bytes.push_back(bytes_of(rows.tail_R.to(at::kFloat).unsqueeze(1)));
  }
  return at::cat(bytes, 1);
}

SparseRows decode_sparse(const RowFormat& format, const at::Tensor& rows_RW) {
  check_rows_shape(format, rows_RW);
  SparseRows rows;
  rows.ids_RK = decode_ids(format, rows_RW);
  rows.values_RK = value_bytes(format) > 0
      ? decode_values(format, rows_RW)
      : at::full(
            rows.ids_RK.sizes(), 1.0 / static_cast<double>(format.entries), rows.ids_RK.options().dtype(at::kFloat));
  if (format.kind == TeacherKind::kTopK) {
    rows.tail_R = decode_tail(rows_RW);
  }
  return rows;
}

std::string row_problem(const RowFormat& format, const uint8_t* row) {
  if (!format.is_sparse()) {
    return "";
  }
  const bool topk = format.kind == TeacherKind::kTopK, half = format.encoding == Encoding::kFloat16;
  const int64_t width = format.row_bytes(), bytes = id_bytes(format), size = value_bytes(format);
  const auto none = static_cast<uint64_t>(-1) >> (64 - 8 * bytes);
  thread_local std::optional<std::pair<int64_t, SeenIds>> seen; // for a number of columns
  thread_local int64_t stamp = 0;
  if (topk && (!seen || seen->first != format.columns)) {
    seen.emplace(format.columns, SeenIds(format.columns));
  }
  ++stamp;
  const uint8_t* values = row + format.entries * bytes;
  double sum = 0;
  bool any = false;
  for (int64_t i = 0; i < format.entries; ++i) {
    const uint64_t id = id_at(row + i * bytes, bytes);
    if (id == none) {
      continue;
    }
    any = true;
    if (id >= static_cast<uint64_t>(format.columns)) {
      return absl::StrFormat("expected tokens below %d, found %d", format.columns, id);
    }
    if (topk && seen->second.again(id, stamp)) {
      return absl::StrFormat("expected every token once, found %d twice", id);
    }
    const double value = size > 0 ? value_at(values + i * size, half) : 0;
    if (topk ? !(value <= kSlack) : !(value >= 0 && std::isfinite(value))) {
      return absl::StrFormat("expected %s, found %g", topk ? "log-probabilities" : "weights of 0 or more", value);
    }
    sum += topk ? std::exp(value) : 0;
  }
  if (!topk && !any) {
    return "expected draws, found none, as where the teacher's prediction is not finite";
  }
  const double tail = topk ? value_at(row + width - 4, /*half=*/false) : 0;
  if (topk && !(std::abs(tail) <= 1 + kSlack && sum + tail <= 1 + kSlack && sum + tail > 0)) {
    return absl::StrFormat("expected probabilities whose sum is 1, found %g and %g of other tokens", sum, tail);
  }
  return "";
}

absl::Status check_rows(const RowFormat& format, const uint8_t* rows, int64_t count) {
  if (!format.is_sparse()) {
    return absl::OkStatus();
  }
  const int64_t width = format.row_bytes();
  for (int64_t row = 0; row < count; ++row) {
    if (const std::string problem = row_problem(format, rows + row * width); !problem.empty()) {
      return absl::DataLossError(absl::StrFormat("row %d: %s", row, problem));
    }
  }
  return absl::OkStatus();
}

} // namespace distill::teacher_cache
