#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "losses/head/linear_head.h"

// Conversions of the PyTorch operators' arguments. The inner operators take options and sizes as lists, so that
// autograd can save them and a graph can hold them.
namespace distill::losses {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& tensor);
OptionalTensor or_none(const at::Tensor& tensor);

// Throw for a name that is none of them, naming them.
Divergence divergence_named(std::string_view name);
MetricSet metrics_named(std::string_view name);

// The list form of the options, and back.
std::vector<double> options_list(const LossOptions& options);
LossOptions options_from(at::ArrayRef<double> list);

// {vocab_size, valid_tokens, chunk_size, memory_cap_mb, min_chunk_size}.
struct HeadSizes {
  int64_t vocab_size = 0;
  int64_t valid_tokens = -1;
  ChunkOptions chunks;
};
std::vector<int64_t> sizes_list(const HeadSizes& sizes);
HeadSizes sizes_from(at::IntArrayRef list);

// The scalars that every operator with a soft loss takes, in the order of its schema.
LossOptions soft_options(
    std::string_view divergence, double beta, double skew_alpha, double temperature, bool scale_by_temperature_squared,
    double hard_weight, double soft_weight, double label_smoothing, double z_loss, double student_softcap,
    double teacher_softcap, std::string_view metrics);

// Cross-entropy alone.
LossOptions hard_options(double label_smoothing, double z_loss, double softcap, std::string_view metrics);

// Of tensors that hold sums: fp32 (fp64 for an fp64 tensor), on its device, without autograd.
at::TensorOptions sum_options(const at::Tensor& tensor);

// Reduces metrics_MN[kLoss]: none, sum, or mean over the valid tokens or over `num_tokens` where given. A mean over no
// token is 0, and so is its gradient. Throws for a `num_tokens` that is negative or not finite.
at::Tensor reduced_loss(
    const at::Tensor& metrics_MN, const at::Tensor& targets_N, std::string_view reduction,
    std::optional<double> num_tokens);

// Keeps tensors for the backward pass. Autograd refuses to save those made under torch.inference_mode(), such as a
// teacher's logits or labels; they are constants of the loss, and are kept as they are.
void keep_for_backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list tensors);
torch::autograd::variable_list kept_for_backward(torch::autograd::AutogradContext* ctx);

// Called by every backward pass: its results are no functions of its inputs to autograd, so that a second derivative
// would silently be wrong. Throws where one may follow (create_graph=True).
void refuse_second_derivative();

} // namespace distill::losses

#define DISTILL_SOFT_OPTIONS                                                                            \
  "str divergence='jsd', float beta=0.5, float skew_alpha=0.1, float temperature=1.0, "                 \
  "bool scale_by_temperature_squared=False, float hard_weight=0.0, float soft_weight=1.0, "             \
  "float label_smoothing=0.0, float z_loss=0.0, float student_softcap=0.0, float teacher_softcap=0.0, " \
  "str metrics='all', "
#define DISTILL_HARD_OPTIONS "float label_smoothing=0.0, float z_loss=0.0, float softcap=0.0, str metrics='all', "
// Of the operators whose teacher is a few tokens: its softcap, if any, is in its log-probabilities.
#define DISTILL_ENTRY_OPTIONS                                                               \
  "float temperature=1.0, bool scale_by_temperature_squared=False, float hard_weight=0.0, " \
  "float soft_weight=1.0, float label_smoothing=0.0, float z_loss=0.0, float student_softcap=0.0, "
// Top-k where there is a tail, otherwise samples: the inner operators' form.
#define DISTILL_ENTRIES \
  "Tensor? teacher_ids=None, Tensor? teacher_values=None, Tensor? teacher_tail=None, float teacher_temperature=1.0"
#define DISTILL_REDUCTION "str reduction='mean', float? num_tokens=None"
#define DISTILL_CHUNKS                                                                                          \
  ", int vocab_size=0, int valid_tokens=-1, int chunk_size=0, int memory_cap_mb=1024, int min_chunk_size=256, " \
  "bool bf16_logits=False"
