#pragma once

#include <memory>

#include "trainer/models/weight_source.h"

namespace distill::models {

// The first values of trained_layouts() of a model with an adapter, as peft's: A uniform in +-1/sqrt(inputs) (Kaiming
// with a = sqrt(5)), drawn from the seed and the module's name, B zero, and `base`'s values of what is trained as a
// whole.
std::unique_ptr<WeightSource> initial_adapter(std::shared_ptr<const WeightSource> base, uint64_t seed);

// Reads elements [first, first + dst.numel()) of one Hugging Face tensor, which is a part of `param`, from any source.
void copy_part(
    const WeightSource& source, const ParamLayout& param, const ParamPart& part, int64_t first, at::Tensor dst);

} // namespace distill::models
