#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace distill::losses {

// Consecutive rows [begin, end) of an lm_head that are columns of the distribution.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const ColumnRange&) const = default;
};
// The columns of a distribution, in the order of the rows: ascending, not empty, without overlap. A column's number is
// its place among them, so that rows in between have none.
using ColumnRanges = std::vector<ColumnRange>;

// Counts the columns.
int64_t count_columns(const ColumnRanges& ranges);

// Tells whether the ranges are ascending, not empty, without overlap, and within `rows` rows.
bool are_columns(const ColumnRanges& ranges, int64_t rows);

// Rows of an lm_head whose logits, or gradients, are computed by one product, and the number of the first of its
// columns.
struct ProductPart {
  ColumnRange rows;
  int64_t column = 0;

  int64_t size() const {
    return rows.end - rows.begin;
  }
  bool operator==(const ProductPart&) const = default;
};
// Divides the columns among products. On tensor cores a product with a size that is no multiple of 8 takes 4 to 6 times
// as long (docs/loss_head.md), so that the parts have such sizes and begin at such columns, but for at most two of
// fewer than 8 columns in each range. These come first: a sum that is rounded after each part is then rounded while it
// is small.
std::vector<ProductPart> product_parts(const ColumnRanges& ranges);

// Converts ids of rows to numbers of columns, and back. ids: any shape, an integer dtype; negative ones stay as they
// are. An id without a column becomes the number of columns, which is none. Never waits for the device.
at::Tensor columns_of_ids(const at::Tensor& ids, const ColumnRanges& ranges);
at::Tensor ids_of_columns(const at::Tensor& columns, const ColumnRanges& ranges);

// Takes the columns of a vector [V] out: a view where they are one range, else a copy. Undefined stays undefined.
at::Tensor take_columns(const at::Tensor& values_V, const ColumnRanges& ranges);

} // namespace distill::losses
