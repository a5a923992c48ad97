#pragma once

#include "trainer/models/ops/float8.h"
#include "trainer/models/ops/float8_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {

// `x`: contiguous, [R, C], or [R, 2C] for GLU. `out`: [R, C], contiguous.
inline Float8RowsArgs float8_rows_args(const at::Tensor& x, const Float8Rows& out, const Float8Rounding& rounding) {
  return {
      .x = x.const_data_ptr(),
      .values = out.values_RC.mutable_data_ptr(),
      .scale = out.scale_R.mutable_data_ptr<float>(),
      .rows = out.values_RC.size(0),
      .columns = out.values_RC.size(1),
      .type = element_type(x.scalar_type()),
      .power_of_two = rounding.power_of_two,
      .factor = rounding.factor_C.defined() ? rounding.factor_C.const_data_ptr<float>() : nullptr,
      .counts = rounding.counts.defined() ? rounding.counts.mutable_data_ptr<int64_t>() : nullptr};
}

} // namespace distill::models
