#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trainer/models/weight_source.h"

namespace distill::models {

// The weights of a model whose tokens have other numbers: row i of its embedding and of its lm_head is row rows[i] of
// `source`'s, whose tables have `source_rows` rows; -1: zeros. All other tensors are the source's. The layouts that are
// read have rows.size() rows.
std::unique_ptr<WeightSource> renumbered_weights(
    std::shared_ptr<const WeightSource> source, std::vector<int64_t> rows, int64_t source_rows);

// The other way round: a table with `source_rows` rows of one whose row i is row rows[i] of it. Zeros where it has
// none.
at::Tensor in_source_order(const at::Tensor& table_VG, const std::vector<int64_t>& rows, int64_t source_rows);

} // namespace distill::models
