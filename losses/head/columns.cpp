#include "losses/head/columns.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace distill::losses {

int64_t count_columns(const ColumnRanges& ranges) {
  int64_t columns = 0;
  for (const ColumnRange& range : ranges) {
    columns += range.end - range.begin;
  }
  return columns;
}

bool are_columns(const ColumnRanges& ranges, int64_t rows) {
  int64_t last = 0;
  for (const ColumnRange& range : ranges) {
    if (range.begin < last || range.end <= range.begin || range.end > rows) {
      return false;
    }
    last = range.end;
  }
  return true;
}

std::vector<ProductPart> product_parts(const ColumnRanges& ranges) {
  constexpr int64_t kMultiple = 8; // bf16 elements in 16 bytes
  std::vector<ProductPart> few, many;
  int64_t first = 0; // the range's first column
  for (const auto& [begin, end] : ranges) {
    const int64_t size = end - begin;
    const int64_t before = std::min(size, (kMultiple - first % kMultiple) % kMultiple);
    const int64_t after = (size - before) % kMultiple;
    if (before > 0) {
      few.push_back({{begin, begin + before}, first});
    }
    if (before + after < size) {
      many.push_back({{begin + before, end - after}, first + before});
    }
    if (after > 0) {
      few.push_back({{end - after, end}, first + size - after});
    }
    first += size;
  }
  few.insert(few.end(), many.begin(), many.end());
  return few;
}

at::Tensor columns_of_ids(const at::Tensor& ids, const ColumnRanges& ranges) {
  const int64_t columns = count_columns(ranges);
  at::Tensor out = ids.clone();
  int64_t last = 0; // the end of the range before
  for (const ColumnRange& range : ranges) {
    if (range.begin > last) {
      const at::Tensor after = ids.ge(range.begin);
      out.sub_(after.to(ids.scalar_type()).mul_(range.begin - last));
      out.masked_fill_(ids.ge(last).bitwise_and_(after.logical_not_()), columns);
    }
    last = range.end;
  }
  return out.masked_fill_(ids.ge(last), columns);
}

at::Tensor ids_of_columns(const at::Tensor& columns, const ColumnRanges& ranges) {
  at::Tensor out = columns.clone();
  int64_t last = 0, first = 0; // the end of the range before, and the range's first column
  for (const ColumnRange& range : ranges) {
    if (range.begin > last) {
      out.add_(columns.ge(first).to(columns.scalar_type()).mul_(range.begin - last));
    }
    first += range.end - range.begin;
    last = range.end;
  }
  return out;
}

at::Tensor take_columns(const at::Tensor& values_V, const ColumnRanges& ranges) {
  if (!values_V.defined()) {
    return values_V;
  }
  std::vector<at::Tensor> parts;
  parts.reserve(ranges.size());
  for (const ColumnRange& range : ranges) {
    parts.push_back(values_V.narrow(0, range.begin, range.end - range.begin));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

} // namespace distill::losses
