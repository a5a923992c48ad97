#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "data/base/enum_names.h"

// The bytes that a cache stores for one token: a final hidden state of the teacher, after the last norm, of which the
// loss head makes the logits of the whole vocabulary. R tokens, G hidden size, W bytes of a row.
namespace distill::teacher_cache {

enum class Encoding {
  kFloat32, // G values
  kBFloat16, // G values
  kInt8, // G integers, then a bfloat16 scale for each group of kGroup of them
  kFloat8, // G values in e4m3, then one float32 scale
};
constexpr auto enum_names(Encoding) {
  return base::names_of<Encoding>("float32", "bfloat16", "int8", "float8");
}

struct RowFormat {
  static constexpr int64_t kGroup = 64; // values that share a scale (kInt8)

  Encoding encoding = Encoding::kBFloat16;
  int64_t hidden_size = 0; // G

  int64_t row_bytes() const; // W
  bool operator==(const RowFormat&) const = default;
};

// The encoding that stores a dtype as it is; nullopt: there is none.
std::optional<Encoding> exact_encoding(at::ScalarType dtype);

// Rows [R, W], uint8, of hidden states [R, G] of any floating dtype, on their device (or meta). Exact where the
// encoding is the states' own dtype.
at::Tensor encode(const RowFormat& format, const at::Tensor& hidden_RG);

// Hidden states [R, G] of this dtype from rows [R, W].
at::Tensor decode(const RowFormat& format, const at::Tensor& rows_RW, at::ScalarType dtype);

} // namespace distill::teacher_cache
