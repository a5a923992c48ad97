#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/block.h"
#include "trainer/models/layout.h"
#include "trainer/sharding/communicator.h"
#include "trainer/sharding/shard_range.h"

namespace distill::sharding {

// The float8 weights of the blocks of a model that is trained, made from the fp32 master weights after every update.
//
// A unit's values are one byte for each element of its flat buffer, of which those of the matrices are used: a rank's
// shard of them is the shard of its master weights, whatever rows it cuts, and the all-gather moves one byte for each
// element. The scales of the rows and the unit's vectors (norms, biases) are few, and every rank has all of them: after
// an update the ranks agree on them in one all-reduce for all units (the largest of the rows' magnitudes, and of each
// element of a vector the value of the rank that owns it). Scales are powers of two (models/ops/float8.h), and any
// number of ranks computes the same bits.
class Float8Weights {
 public:
  // `compute_dtype`: of vectors and of all that is not in float8. `weight_gradients`: the products of the weights'
  // gradients are in float8, too (models::Projection::float8_weight_gradient).
  Float8Weights(at::Device device, at::ScalarType compute_dtype, bool weight_gradients = false);

  // Adds a unit; its index must be one above the last one's, or larger. Every matrix of the unit that may be in float8
  // is; the others come before it.
  void add(int64_t index, const models::UnitLayout& layout, const ShardRange& shard);
  // Call when every unit has been added.
  void allocate();
  bool has(int64_t index) const {
    return index < static_cast<int64_t>(units_.size()) && units_[index].used;
  }

  // The part of a unit that this rank has.
  struct Part {
    at::Tensor master; // fp32 [shard.numel]
    at::Tensor values; // kByte [shard.numel], written by refresh()
  };
  // Makes values, scales and vectors from the master weights, on the current stream. `parts`: of every unit, by index;
  // those of other units are not read. `shard_axis` null: this rank holds whole units. All ranks call it together.
  void refresh(const std::vector<Part>& parts, Communicator* shard_axis);

  // The unit's parameters. `values`: the whole unit's, gathered.
  models::BlockParams params(int64_t index, const at::Tensor& values) const;

  // Counts of what rounding lost since clear_counts(), by models::Float8Operand and models::Float8Count: int64.
  const at::Tensor& counts() const {
    return counts_;
  }
  void clear_counts() {
    counts_.zero_();
  }

 private:
  struct Unit {
    bool used = false; // false: not in float8
    models::UnitLayout layout;
    ShardRange shard;
    int64_t vectors = 0; // elements before the first float8 matrix
    int64_t begin = 0; // of its whole data: the vectors, then each matrix's rows
  };
  struct Rows { // of one matrix
    const models::ParamLayout* matrix = nullptr;
    at::Tensor whole; // their magnitudes or scales, a view
  };
  std::vector<Rows> rows_of(const Unit& unit) const;
  void round_whole_units(const std::vector<Part>& parts);
  void agree(const std::vector<Part>& parts, Communicator& shard_axis);

  at::Device device_;
  at::ScalarType compute_dtype_;
  bool weight_gradients_;
  std::vector<Unit> units_;
  int64_t numel_ = 0;
  at::Tensor whole_; // fp32 [numel]: vectors, and magnitudes that become scales
  at::Tensor vectors_; // the same in the compute dtype, of which the vectors are read
  at::Tensor counts_;
};

} // namespace distill::sharding
