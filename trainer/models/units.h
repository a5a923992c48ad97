#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"

// The units around the decoder blocks. V vocabulary; the rest as in block.h.
namespace distill::models {

// Returns the token embedding [V, H] of an embedding unit (tied or not).
at::Tensor embedding_weight(const UnitLayout& layout, const at::Tensor& flat);
// Returns the final norm [H] and lm_head [V, H] of a head unit; with tied embeddings, the lm_head is the embedding.
at::Tensor final_norm_weight(const UnitLayout& layout, const at::Tensor& flat);
at::Tensor lm_head_weight(const UnitLayout& layout, const at::Tensor& flat);
// The name of the lm_head in a head unit: "embedding" in one that is tied.
const char* lm_head_param(UnitKind kind);

// The indices in `layouts` of the unit with the embedding and of the one with the final norm and head: the same with
// tied embeddings.
size_t embedding_unit(const std::vector<UnitLayout>& layouts);
size_t head_unit(const std::vector<UnitLayout>& layouts);

struct FinalNormSaved {
  at::Tensor x_NH;
  at::Tensor rstd_N;

  int64_t bytes() const;
};

// Applies the final norm: returns the lm_head's input. A null `saved` means that no backward pass follows.
at::Tensor final_norm_forward(
    const ModelConfig& config, const at::Tensor& norm_H, const at::Tensor& x_NH, FinalNormSaved* saved);

// Returns dx_NH; adds to grad_H unless it is undefined.
at::Tensor final_norm_backward(
    const ModelConfig& config, const at::Tensor& norm_H, const at::Tensor& dhidden_NH, const FinalNormSaved& saved,
    at::Tensor& grad_H);

} // namespace distill::models
