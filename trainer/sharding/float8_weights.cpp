#include "trainer/sharding/float8_weights.h"

#include <algorithm>
#include <limits>

#include "trainer/device/memory_tracker.h"
#include "trainer/models/ops/float8_shard.h"

namespace distill::sharding {
namespace {

int64_t aligned(int64_t elements) {
  return (elements + models::kParamAlignment - 1) / models::kParamAlignment * models::kParamAlignment;
}

// The part of elements [begin, end) of a unit that a rank holds.
struct Overlap {
  int64_t begin = 0; // in the unit
  int64_t count = 0;

  Overlap(const ShardRange& shard, int64_t from, int64_t to)
      : begin(std::max(shard.begin, from)), count(std::min(shard.begin + shard.numel, to) - begin) {}
  at::Tensor of(const at::Tensor& part, const ShardRange& shard) const {
    return part.narrow(0, begin - shard.begin, count);
  }
};

models::MatrixPart matrix_part(const models::ParamLayout& matrix, const Overlap& overlap, const at::Tensor& elements) {
  return {elements, overlap.begin - matrix.offset, matrix.shape[1]};
}

} // namespace

Float8Weights::Float8Weights(at::Device device, at::ScalarType compute_dtype, bool weight_gradients)
    : device_(device), compute_dtype_(compute_dtype), weight_gradients_(weight_gradients) {
  counts_ =
      at::zeros({models::kFloat8Operands, models::kFloat8Counts}, at::TensorOptions().dtype(at::kLong).device(device));
}

void Float8Weights::add(int64_t index, const models::UnitLayout& layout, const ShardRange& shard) {
  TORCH_CHECK(!has(index) && index >= static_cast<int64_t>(units_.size()), "unit ", index, " is added twice");
  units_.resize(static_cast<size_t>(index) + 1);
  Unit& unit = units_[index];
  unit.used = true;
  unit.layout = layout;
  unit.shard = shard;
  unit.begin = numel_;
  unit.vectors = layout.numel;
  for (const models::ParamLayout& param : layout.params) {
    if (param.may_be_float8) {
      unit.vectors = std::min(unit.vectors, param.offset);
      numel_ += aligned(param.shape[0]);
    }
  }
  numel_ += unit.vectors;
}

std::vector<Float8Weights::Rows> Float8Weights::rows_of(const Unit& unit) const {
  std::vector<Rows> rows;
  int64_t begin = unit.begin + unit.vectors;
  for (const models::ParamLayout& param : unit.layout.params) {
    if (param.may_be_float8) {
      rows.push_back({&param, whole_.narrow(0, begin, param.shape[0])});
      begin += aligned(param.shape[0]);
    }
  }
  return rows;
}

void Float8Weights::allocate() {
  const auto options = at::TensorOptions().device(device_);
  const device::LabelScope label(device::Category::kStudent);
  whole_ = at::empty({numel_}, options.dtype(at::kFloat));
  vectors_ = at::empty({numel_}, options.dtype(compute_dtype_));
}

// Finds each row's scale and rounds the row in one pass over the matrix.
void Float8Weights::round_whole_units(const std::vector<Part>& parts) {
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (!unit.used) {
      continue;
    }
    whole_.narrow(0, unit.begin, unit.vectors).copy_(parts[i].master.narrow(0, 0, unit.vectors));
    for (const Rows& rows : rows_of(unit)) {
      const models::ParamLayout& matrix = *rows.matrix;
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, matrix.offset, matrix.numel()); };
      const models::Float8Rows rounded{part(parts[i].values).view(at::kFloat8_e4m3fn).view(matrix.shape), rows.whole};
      models::float8_rows_out(part(parts[i].master).view(matrix.shape), rounded, {.power_of_two = true});
    }
  }
}

void Float8Weights::agree(const std::vector<Part>& parts, Communicator& shard_axis) {
  whole_.fill_(-std::numeric_limits<float>::infinity()); // what another rank holds
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (!unit.used) {
      continue;
    }
    if (const Overlap vectors(unit.shard, 0, unit.vectors); vectors.count > 0) {
      whole_.narrow(0, unit.begin + vectors.begin, vectors.count).copy_(vectors.of(parts[i].master, unit.shard));
    }
    for (Rows& rows : rows_of(unit)) {
      const Overlap own(unit.shard, rows.matrix->offset, rows.matrix->offset + rows.matrix->numel());
      if (own.count > 0) {
        models::raise_row_magnitudes_(matrix_part(*rows.matrix, own, own.of(parts[i].master, unit.shard)), rows.whole);
      }
    }
  }
  shard_axis.all_reduce_max(whole_);
}

void Float8Weights::refresh(const std::vector<Part>& parts, Communicator* shard_axis) {
  if (shard_axis == nullptr) {
    round_whole_units(parts);
    vectors_.copy_(whole_);
    return;
  }
  agree(parts, *shard_axis);
  vectors_.copy_(whole_);
  models::magnitudes_to_scales_(whole_);
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (!unit.used) {
      continue;
    }
    for (const Rows& rows : rows_of(unit)) {
      const Overlap own(unit.shard, rows.matrix->offset, rows.matrix->offset + rows.matrix->numel());
      if (own.count > 0) {
        at::Tensor values = own.of(parts[i].values, unit.shard);
        models::round_matrix_part(
            matrix_part(*rows.matrix, own, own.of(parts[i].master, unit.shard)), rows.whole, values);
      }
    }
  }
}

models::BlockParams Float8Weights::params(int64_t index, const at::Tensor& values) const {
  const Unit& unit = units_[index];
  const std::vector<Rows> scales = rows_of(unit);
  models::BlockParams params = models::block_params([&](std::string_view name) -> at::Tensor {
    const std::string_view suffix = models::kScaleSuffix;
    const bool is_scale = name.ends_with(suffix);
    const models::ParamLayout* param = unit.layout.find(is_scale ? name.substr(0, name.size() - suffix.size()) : name);
    if (param == nullptr || (is_scale && !param->may_be_float8)) {
      return {};
    }
    if (is_scale) {
      const auto found =
          std::find_if(scales.begin(), scales.end(), [param](const Rows& rows) { return rows.matrix == param; });
      return found->whole;
    }
    if (param->may_be_float8) {
      return values.narrow(0, param->offset, param->numel()).view(at::kFloat8_e4m3fn).view(param->shape);
    }
    return vectors_.narrow(0, unit.begin + param->offset, param->numel()).view(param->shape);
  });
  for (const auto& [name, projection] : params.projections()) {
    projection->float8_weight_gradient = weight_gradients_ && projection->is_float8();
    for (int64_t operand = 0; operand < models::kFloat8Operands; ++operand) {
      projection->float8_counts[static_cast<size_t>(operand)] = counts_[operand];
    }
  }
  return params;
}

} // namespace distill::sharding
