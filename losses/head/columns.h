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

// Converts ids of rows to numbers of columns, and back. ids: any shape, an integer dtype; negative ones stay as they
// are. An id without a column becomes the number of columns, which is none. Never waits for the device.
at::Tensor columns_of_ids(const at::Tensor& ids, const ColumnRanges& ranges);
at::Tensor ids_of_columns(const at::Tensor& columns, const ColumnRanges& ranges);

// Takes the columns of a vector [V] out: a view where they are one range, else a copy. Undefined stays undefined.
at::Tensor take_columns(const at::Tensor& values_V, const ColumnRanges& ranges);

} // namespace distill::losses
