#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trainer/models/block.h"
#include "trainer/models/layout.h"

// The units around the decoder blocks, and a forward pass over all of them. V vocabulary; the rest as in block.h.
namespace distill::models {

// Token embedding [V, H] of an embedding unit (tied or not).
at::Tensor embedding_weight(const UnitLayout& layout, const at::Tensor& flat);
// Final norm [H] and lm_head [V, H] of a head unit; with tied embeddings, the lm_head is the embedding.
at::Tensor final_norm_weight(const UnitLayout& layout, const at::Tensor& flat);
at::Tensor lm_head_weight(const UnitLayout& layout, const at::Tensor& flat);

// Which of `layouts` holds the embedding, and which the final norm and head: the same with tied embeddings.
size_t embedding_unit(const std::vector<UnitLayout>& layouts);
size_t head_unit(const std::vector<UnitLayout>& layouts);

struct FinalNormSaved {
  at::Tensor x_NH;
  at::Tensor rstd_N;

  int64_t bytes() const;
};

// The final norm: returns the lm_head's input. A null `saved` means that no backward pass follows.
at::Tensor final_norm_forward(
    const ModelConfig& config, const at::Tensor& norm_H, const at::Tensor& x_NH, FinalNormSaved* saved);

// Returns dx_NH; adds to grad_H unless it is undefined.
at::Tensor final_norm_backward(
    const at::Tensor& norm_H, const at::Tensor& dhidden_NH, const FinalNormSaved& saved, at::Tensor& grad_H);

// Flat weights of unit i, on the model's device in the compute dtype. Called in forward order, and with tied embeddings
// once more for the first unit at the end; the returned tensor is used until the next call.
using UnitWeights = std::function<at::Tensor(size_t unit)>;

// Final hidden states [N, H] of tokens_N, for the teacher and for evaluation: nothing is saved for a backward pass.
at::Tensor model_forward_hidden(
    const ModelConfig& config, const std::vector<UnitLayout>& layouts, const SequenceInfo& seq,
    const RopeTable& rope_table, const at::Tensor& tokens_N, const UnitWeights& weights);

} // namespace distill::models
