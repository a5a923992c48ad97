#pragma once

#include <ATen/ATen.h>

#include "trainer/models/weight_source.h"

namespace distill::models {

// Weights that follow from a tensor's name and an element's place in it, and a count of the elements that were read.
class CountingWeights : public WeightSource {
 public:
  int64_t read() const {
    return read_;
  }

 protected:
  void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    read_ += dst.numel();
    double salt = 0;
    for (const char letter : piece.part->hf_name) {
      salt = 0.7 * salt + letter;
    }
    dst.copy_(at::arange(first, first + dst.numel(), at::kDouble).mul_(0.37).add_(salt).sin_());
  }

 private:
  mutable int64_t read_ = 0;
};

} // namespace distill::models
