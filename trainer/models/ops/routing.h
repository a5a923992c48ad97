#pragma once

#include <ATen/core/Tensor.h>

// Which experts the tokens of a micro-batch visit. N tokens, E experts, K experts for each token, M = N * K visits,
// which are sorted by expert (those of one expert in the order of the tokens). All shapes depend on N, E and K alone,
// so that the host never waits for the choice.
namespace distill::models {

struct Routing {
  at::Tensor probs_NE; // softmax of the router's logits; fp32, fp64 for fp64
  at::Tensor experts_NK; // int64; those of the K largest probabilities, the largest first
  at::Tensor visits_M; // int32; visit n * K + k (token n's k-th expert) at its place among the sorted ones
  at::Tensor places_NK; // int32; the place of each visit: the inverse of visits_M
  at::Tensor ends_E; // int32; the end of each expert's visits
};

Routing route(const at::Tensor& logits_NE, int64_t per_token);

// The token of each visit: int32 [M].
at::Tensor visiting_tokens(const Routing& routing);

// The weights of the visits, [N, K] in the dtype of the probabilities: the probabilities themselves, or divided by the
// sum of the token's.
at::Tensor visit_weights(const Routing& routing, bool normalise);

// The gradient of the logits, given that of the visits' weights, and of the probabilities in whatever else they go
// into (overwritten; undefined: nothing).
at::Tensor routing_backward(
    const Routing& routing, bool normalise, const at::Tensor& dweights_NK, at::Tensor dprobs_NE = {});

// Adds up the rows of each token's visits: y[n] = sum over k of rows[places[n, k]] (+ residual[n]), with one rounding
// at the end. `in_place`: written into the residual, which is returned.
at::Tensor combine_visits(
    const at::Tensor& rows_MH, const at::Tensor& places_NK, const at::Tensor& residual_NH = {}, bool in_place = false);

} // namespace distill::models
