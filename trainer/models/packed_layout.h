#pragma once

#include <functional>

#include "trainer/models/layout.h"
#include "trainer/models/weight_source.h"

// Units whose parameters are stored in more than one dtype. The flat buffer of a packed unit is bytes, and offsets
// count bytes: vectors in the compute dtype, then the scales of float8 matrices (fp32, one for each row, named
// "<parameter>.scale"), then matrices, in the compute dtype or in float8 (trainer/models/ops/float8.h).
namespace distill::models {

// Returns the unit's layout with the model's float8 products packed; the layout itself if it has none.
UnitLayout packed_layout(const UnitLayout& layout, const Float8Products& float8, at::ScalarType compute_dtype);

// Replaces each element by the largest of those that the readers of a unit's other ranges have, who all call it.
using TakeLargest = std::function<void(at::Tensor)>;

// Reads bytes [begin, begin + bytes.numel()) of a packed unit. `bytes`: kByte, one-dimensional, contiguous, on any
// device. Matrices are rounded to float8 some rows at a time, from the values in the dtype of the model folder, and
// every range of a unit has the same bytes as the whole unit has there. Rows are read whole, since a row's scale is of
// its largest magnitude: a row that a range cuts is read for both sides of the cut.
// `take_largest`: called once, with the scales of all rows; the ranges of those who call it cover the unit, and each
// reads only rows of which its range has values. Without it, the rows of scales in the range are read, too: a range
// with all of the scales reads the whole unit.
void read_packed(
    const WeightSource& source, const ModelConfig& config, const UnitLayout& packed, int64_t begin, at::Tensor bytes,
    const TakeLargest& take_largest = {});

} // namespace distill::models
