#pragma once

#include <ATen/ATen.h>

#include "trainer/sharding/communicator.h"

namespace distill::sharding {

// A communicator as one rank of several sees it, without the others: rank r's part of a gather is this rank's plus
// r - rank, and every other rank contributes to a sum what this one does.
class OneOfMany : public Communicator {
 public:
  OneOfMany(int64_t rank, int64_t size) : rank_(rank), size_(size) {}

  int64_t gathers = 0, reductions = 0, sums = 0;

  int64_t rank() const override {
    return rank_;
  }
  int64_t size() const override {
    return size_;
  }
  void all_gather(at::Tensor full, const at::Tensor& shard) override {
    ++gathers;
    const at::Tensor own = shard.clone();
    for (int64_t r = 0; r < size_; ++r) {
      full.narrow(0, r * own.numel(), own.numel()).copy_(own + (r - rank_));
    }
  }
  void reduce_scatter(at::Tensor shard, const at::Tensor& full) override {
    ++reductions;
    shard.copy_(full.narrow(0, rank_ * shard.numel(), shard.numel()) * size_);
  }
  void all_reduce(at::Tensor tensor) override {
    ++sums;
    tensor.mul_(size_);
  }
  void all_reduce_max(at::Tensor) override {} // as if the others held smaller values
  void broadcast(at::Tensor, int64_t) override {}
  void shutdown() override {}

 private:
  int64_t rank_;
  int64_t size_;
};

} // namespace distill::sharding
