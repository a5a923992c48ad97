#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "data/base/enum_names.h"
#include "losses/head/columns.h"
#include "losses/teacher_kind.h"

// The bytes that a cache stores for one token: the teacher's prediction of the token that follows. R tokens, W bytes of
// a row, G hidden size.
namespace distill::teacher_cache {

// The encoding of the numbers of a row. Hidden states have any but float16; log-probabilities float16 or float32;
// weights of samples float32.
enum class Encoding {
  kFloat32, // G values
  kBFloat16, // G values
  kInt8, // G integers, then a bfloat16 scale for each group of kGroup of them
  kFloat8, // G values in e4m3, then one float32 scale; captures of earlier versions wrote it
  kFloat16,
};
constexpr auto enum_names(Encoding) {
  return base::names_of<Encoding>("float32", "bfloat16", "int8", "float8", "float16");
}

struct RowFormat {
  static constexpr int64_t kGroup = 64; // values that share a scale (kInt8)

  Encoding encoding = Encoding::kBFloat16;
  int64_t hidden_size = 0; // G, of a teacher's final hidden state after the last norm (kHidden)
  losses::TeacherKind kind = losses::TeacherKind::kHidden;
  // The members below describe rows of kTopK and kSampled.
  int64_t entries = 0; // tokens of a row: K of top-k, S draws
  int64_t columns = 0; // ids are below it
  double temperature = 1; // of the distribution
  double softcap = 0; // of its logits; 0: none
  double exponent = 1; // of the probabilities that were drawn from (kSampled)
  int64_t seed = 0; // of the draws (kSampled)
  // The ids that are columns of the distribution, where these are not all below `columns`; of a hidden state: where its
  // teacher's tokens have been numbered as the student's (trainer/teacher/vocabulary.h). Empty: there are no others.
  losses::ColumnRanges ranges;

  bool is_sparse() const { // a few columns of the vocabulary, in place of a hidden state
    return losses::is_sparse(kind);
  }
  // The columns of the distribution, of a few tokens.
  losses::ColumnRanges column_ranges() const {
    return ranges.empty() ? losses::ColumnRanges{{0, columns}} : ranges;
  }
  int64_t row_bytes() const; // W
  bool operator==(const RowFormat&) const = default;
};

// Describes the rows: "hidden states of 4096 in bfloat16", "the 64 most probable tokens of 128256, log-probabilities in
// float16, ..."
std::string describe(const RowFormat& format);

// Checks the members of a format. InvalidArgument names the key of the manifest: they contradict each other or are out
// of their range.
absl::Status validate(const RowFormat& format);

// Returns the encoding that stores a dtype as it is; nullopt: there is none.
std::optional<Encoding> exact_encoding(at::ScalarType dtype);

// Makes the rows [R, W], uint8, of hidden states [R, G] of any floating dtype, on their device (or meta). They are
// exact if the encoding is the states' own dtype.
at::Tensor encode(const RowFormat& format, const at::Tensor& hidden_RG);

// Makes hidden states [R, G] of this dtype from rows [R, W].
at::Tensor decode(const RowFormat& format, const at::Tensor& rows_RW, at::ScalarType dtype);

// Explains what is wrong with a row in host memory that a teacher has just made: the problems of row_problem
// (sparse_format.h), or hidden states that are not finite. The text is empty if nothing is.
std::string new_row_problem(const RowFormat& format, const uint8_t* row);

// Returns the bytes [R, ...] of the values of each row, and back: `count` bytes from `begin` on.
at::Tensor bytes_of(const at::Tensor& values_RX);
at::Tensor values_of(const at::Tensor& rows_RW, int64_t begin, int64_t count, at::ScalarType dtype);

// Throws for anything but uint8 [R, W].
void check_rows_shape(const RowFormat& format, const at::Tensor& rows_RW);

} // namespace distill::teacher_cache
