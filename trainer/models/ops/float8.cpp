#include "trainer/models/ops/float8.h"

#include "trainer/device/simulation.h"
#include "trainer/models/ops/blas_lt.h"
#include "trainer/models/ops/float8_format.h"
#include "trainer/models/ops/float8_launch.h"
#include "trainer/models/ops/float8_shard.h"

namespace distill::models {
namespace {

void check_rows(const Float8Rows& rows, at::IntArrayRef sizes) {
  const auto& [values_RC, scale_R] = rows;
  TORCH_CHECK(
      values_RC.sizes() == sizes && values_RC.scalar_type() == at::kFloat8_e4m3fn && values_RC.is_contiguous() &&
          scale_R.dim() == 1 && scale_R.size(0) == sizes[0] && scale_R.scalar_type() == at::kFloat &&
          scale_R.is_contiguous(),
      "float8: contiguous e4m3 values ", sizes, " and ", sizes[0], " fp32 scales are expected, found ",
      values_RC.sizes(), " of dtype ", values_RC.scalar_type(), " and ", scale_R.sizes(), " of dtype ",
      scale_R.scalar_type());
}

void check_counts(const at::Tensor& counts) {
  TORCH_CHECK(
      !counts.defined() ||
          (counts.numel() == kFloat8Counts && counts.scalar_type() == at::kLong && counts.is_contiguous()),
      "float8: ", static_cast<int64_t>(kFloat8Counts), " contiguous int64 counts are expected");
}

void check_rounding(const Float8Rounding& rounding, int64_t columns) {
  TORCH_CHECK(
      !rounding.factor_C.defined() ||
          (rounding.factor_C.dim() == 1 && rounding.factor_C.numel() == columns &&
           rounding.factor_C.scalar_type() == at::kFloat && rounding.factor_C.is_contiguous()),
      "float8: ", columns, " contiguous fp32 factors are expected");
  check_counts(rounding.counts);
}

void count_by_ops(const at::Tensor& x, const Float8Rows& out, at::Tensor counts) {
  const auto sampled = [](const at::Tensor& rows) { return rows.slice(0, 0, rows.size(0), kFloat8SampledRows); };
  const at::Tensor sample = sampled(x);
  counts[kFloat8Lost].add_(sample.ne(0).bitwise_and_(sampled(out.values_RC).to(at::kFloat).eq(0)).sum());
  counts[kFloat8Values].add_(sample.numel());
  counts[kFloat8BadRows].add_(out.scale_R.isfinite().bitwise_not_().sum());
}

// Makes the rows by ATen's ops on a device that has no such kernels. The arithmetic is the same.
void rows_by_ops(const at::Tensor& x_RC, const Float8Rows& out, const Float8Rounding& rounding) {
  const at::Tensor x = rounding.factor_C.defined() ? x_RC.to(at::kFloat) * rounding.factor_C : x_RC.to(at::kFloat);
  at::Tensor scale = x.abs().amax(1, /*keepdim=*/true);
  if (rounding.power_of_two) {
    magnitudes_to_scales_(scale);
  } else {
    scale.div_(kFloat8Max).clamp_min_(kFloat8SmallestScale);
  }
  out.values_RC.copy_(x.mul(scale.reciprocal()).clamp_(-kFloat8Max, kFloat8Max));
  out.scale_R.copy_(scale.squeeze(1));
  if (rounding.counts.defined()) {
    count_by_ops(x, out, rounding.counts);
  }
}

// The matrix with zeros behind its columns, contiguous.
at::Tensor padded(const at::Tensor& bytes_RC, int64_t columns) {
  at::Tensor out = at::zeros({bytes_RC.size(0), columns}, bytes_RC.options());
  out.narrow(1, 0, bytes_RC.size(1)).copy_(bytes_RC);
  return out;
}

// The same values, contiguous, where kernels can read 16 bytes at once.
at::Tensor whole_accesses(const at::Tensor& x) {
  const at::Tensor contiguous = x.contiguous();
  const bool aligned = x.is_meta() || reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : contiguous.clone();
}

} // namespace

Float8Rows empty_float8_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  return {at::empty({rows, columns}, options.dtype(at::kFloat8_e4m3fn)), at::empty({rows}, options.dtype(at::kFloat))};
}

void float8_rows_out(const at::Tensor& x_RC, const Float8Rows& out, const Float8Rounding& rounding) {
  TORCH_CHECK(x_RC.dim() == 2, "float8: a matrix is expected, found ", x_RC.sizes());
  check_rows(out, x_RC.sizes());
  check_rounding(rounding, x_RC.size(1));
  if (x_RC.numel() == 0) {
    return;
  }
  if (!device::runs_on_cuda(x_RC)) {
    rows_by_ops(x_RC, out, rounding);
    return;
  }
  const at::Tensor x = x_RC.contiguous();
  run_kernel("float8_rows", launch_float8_rows, float8_rows_args(x, out, rounding), x.device());
}

Float8Rows float8_rows(const at::Tensor& x_RC, const Float8Rounding& rounding) {
  TORCH_CHECK(x_RC.dim() == 2, "float8: a matrix is expected, found ", x_RC.sizes());
  Float8Rows rows = empty_float8_rows(x_RC.size(0), x_RC.size(1), x_RC.options());
  float8_rows_out(x_RC, rows, rounding);
  return rows;
}

at::Tensor float8_to_float(const Float8Rows& rows) {
  return rows.values_RC.to(at::kFloat).mul_(rows.scale_R.unsqueeze(1));
}

at::Tensor float8_linear(
    const Float8Rows& x_NI, const Float8Rows& weight_OI, at::ScalarType dtype, const at::Tensor& bias_O) {
  const at::Tensor& x = x_NI.values_RC;
  const at::Tensor& weight = weight_OI.values_RC;
  check_rows(x_NI, {x.size(0), weight.size(1)});
  check_rows(weight_OI, weight.sizes());
  if (!device::runs_on_cuda(x)) {
    at::Tensor y = at::mm(x.to(at::kFloat), weight.to(at::kFloat).t());
    y.mul_(x_NI.scale_R.unsqueeze(1)).mul_(weight_OI.scale_R);
    if (bias_O.defined()) {
      y.add_(bias_O);
    }
    return y.to(dtype);
  }
  TORCH_CHECK(
      weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0,
      "float8: a weight whose sizes are multiples of 16 is expected, found ", weight.sizes());
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options().dtype(dtype));
  const bool bias_after = bias_O.defined() && dtype == at::kFloat; // which the product does not take
  if (!x.is_meta()) {
    const auto bias = bias_O.defined() && !bias_after ? std::make_optional(bias_O) : std::nullopt;
    at::_scaled_mm_out(
        y, x, weight.t(), x_NI.scale_R.unsqueeze(1), weight_OI.scale_R.unsqueeze(0), bias, /*scale_result=*/{}, dtype,
        /*use_fast_accum=*/true);
  }
  if (bias_after) {
    y.add_(bias_O);
  }
  return y;
}

at::Tensor float8_transpose(const at::Tensor& values_RC, int64_t columns) {
  TORCH_CHECK(
      values_RC.dim() == 2 && values_RC.is_contiguous() && values_RC.scalar_type() == at::kFloat8_e4m3fn,
      "float8: a contiguous e4m3 matrix is expected, found ", values_RC.sizes(), " of dtype ", values_RC.scalar_type());
  const int64_t rows = values_RC.size(0), out_rows = values_RC.size(1);
  columns = columns == 0 ? rows : columns;
  TORCH_CHECK(columns >= rows, "float8: ", rows, " columns or more are expected, found ", columns);
  if (!device::runs_on_cuda(values_RC)) {
    return padded(values_RC.view(at::kByte).t(), columns).view(at::kFloat8_e4m3fn);
  }
  TORCH_CHECK(
      columns % kTransposeUnit == 0 && out_rows % kTransposeUnit == 0, "float8: sizes that are multiples of ",
      kTransposeUnit, " are expected, found ", values_RC.sizes(), " to be transposed to ", columns, " columns");
  at::Tensor transposed = at::empty({out_rows, columns}, values_RC.options());
  if (transposed.numel() > 0) {
    const Float8TransposeArgs args{
        .in = values_RC.const_data_ptr(),
        .out = transposed.mutable_data_ptr(),
        .rows = rows,
        .columns = out_rows,
        .out_columns = columns};
    run_kernel("float8_transpose", launch_float8_transpose, args, values_RC.device());
  }
  return transposed;
}

at::Tensor float8_linear_backward_input(const Float8Rows& dy_NO, const Float8Rows& weight_OI, at::ScalarType dtype) {
  // The inner size is O now, so that the tensor cores need the weight's columns contiguous.
  const Float8Rows transposed{
      float8_transpose(weight_OI.values_RC), at::ones({weight_OI.values_RC.size(1)}, weight_OI.scale_R.options())};
  return float8_linear(dy_NO, transposed, dtype);
}

Float8Rows float8_scaled_columns(
    const at::Tensor& x_NI, const at::Tensor& s_N, int64_t tokens, const at::Tensor& counts) {
  TORCH_CHECK(
      x_NI.dim() == 2 && x_NI.scalar_type() != at::kDouble && s_N.dim() == 1 && s_N.size(0) == x_NI.size(0) &&
          s_N.scalar_type() == at::kFloat && s_N.is_contiguous() && tokens >= x_NI.size(0) &&
          tokens % kFloat8Tokens == 0,
      "float8: a matrix in 32 or 16 bits, a contiguous fp32 scale for each of its rows and room for them are expected, "
      "found ",
      x_NI.sizes(), " of dtype ", x_NI.scalar_type(), ", ", s_N.sizes(), " of dtype ", s_N.scalar_type(), " and ",
      tokens);
  check_counts(counts);
  if (!device::runs_on_cuda(x_NI)) {
    const at::Tensor s = s_N.masked_fill(s_N.le(kFloat8SmallestScale), 0).unsqueeze(1);
    Float8Rows rows = float8_rows((x_NI.to(at::kFloat) * s).t().contiguous(), {.counts = counts});
    rows.values_RC = padded(rows.values_RC.view(at::kByte), tokens).view(at::kFloat8_e4m3fn);
    return rows;
  }
  TORCH_CHECK(
      x_NI.size(1) % kColumnsUnit == 0, "float8: a multiple of ", kColumnsUnit, " columns is expected, found ",
      x_NI.sizes());
  const at::Tensor x = whole_accesses(x_NI);
  Float8Rows rows = empty_float8_rows(x.size(1), tokens, x.options());
  at::Tensor largest_I = at::zeros({x.size(1)}, rows.scale_R.options());
  const Float8ColumnsArgs args{
      .x = x.const_data_ptr(),
      .row_scale = s_N.const_data_ptr<float>(),
      .largest = largest_I.mutable_data_ptr<float>(),
      .values = rows.values_RC.mutable_data_ptr(),
      .scale = rows.scale_R.mutable_data_ptr<float>(),
      .rows = x.size(0),
      .columns = x.size(1),
      .out_columns = tokens,
      .type = element_type(x.scalar_type()),
      .counts = counts.defined() ? counts.mutable_data_ptr<int64_t>() : nullptr};
  if (x.numel() > 0) {
    run_kernel("float8_column_magnitudes", launch_float8_column_magnitudes, args, x.device());
    run_kernel("float8_round_columns", launch_float8_round_columns, args, x.device());
  }
  return rows;
}

void float8_linear_backward_weight(
    const Float8Rows& dy_NO, const at::Tensor& scale_O, const at::Tensor& x_NI, at::Tensor& grad_OI,
    const Float8Accumulation& accumulation, const at::Tensor& counts) {
  const int64_t tokens = x_NI.size(0), outputs = scale_O.size(0);
  check_rows(dy_NO, {tokens, outputs});
  TORCH_CHECK(
      grad_OI.sizes() == at::IntArrayRef({outputs, x_NI.size(1)}) && grad_OI.scalar_type() == at::kFloat &&
          grad_OI.is_contiguous(),
      "float8: a contiguous fp32 gradient [", outputs, ", ", x_NI.size(1), "] is expected, found ", grad_OI.sizes(),
      " of dtype ", grad_OI.scalar_type());
  if (tokens == 0) {
    if (!accumulation.accumulate) {
      grad_OI.zero_();
    }
    return;
  }
  const int64_t whole = (tokens + kFloat8Tokens - 1) / kFloat8Tokens * kFloat8Tokens;
  const Float8Rows x_IN = float8_scaled_columns(x_NI, dy_NO.scale_R, whole, counts);
  const Float8Rows dy_ON{float8_transpose(dy_NO.values_RC, whole), scale_O.reciprocal()};
  if (!device::runs_on_cuda(x_NI)) {
    const at::Tensor product = float8_linear(dy_ON, x_IN, at::kFloat);
    accumulation.accumulate ? grad_OI.add_(product) : grad_OI.copy_(product);
    return;
  }
  TORCH_CHECK(
      outputs % 16 == 0 && x_NI.size(1) % 16 == 0,
      "float8: a weight whose sizes are multiples of 16 is expected, found ", grad_OI.sizes());
  if (x_NI.is_meta()) {
    return;
  }
  TORCH_CHECK(
      blas_lt_scales_rows(x_NI.device()),
      "float8: the gradient of a weight is a product in float8 on GPUs of compute capability 9.0 only");
  blas_lt_float8_product(
      {dy_ON.values_RC, dy_ON.scale_R}, {x_IN.values_RC, x_IN.scale_R}, grad_OI, accumulation.accumulate,
      accumulation.fast);
}

} // namespace distill::models
