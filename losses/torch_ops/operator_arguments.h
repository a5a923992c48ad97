#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "losses/head/linear_head.h"

// Arguments of the PyTorch operators. An option is described once, in the table of operator_arguments.cpp: the schemas
// declare it, calls are read and the inner operators' lists are made by this table. The inner operators take options
// and sizes as lists, so that autograd can save them and a graph can hold them.
namespace distill::losses {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& tensor);
OptionalTensor or_none(const at::Tensor& tensor);

// Declares the options from `first` to `last` of the table in a schema, each with its value in `defaults`:
// "str divergence='jsd', float beta=0.5, ".
std::string declared(std::string_view first, std::string_view last, const LossOptions& defaults = {});

// The schemas share these declarations.
std::string declared_soft_options(); // for a loss with a whole teacher
std::string declared_hard_options(); // for a cross-entropy
std::string declared_reduction();
std::string declared_chunks(); // "int chunk_size=0, int memory_cap_mb=1024, int min_chunk_size=256"
std::string declared_sizes(); // for linear heads: the vocabulary, the valid tokens, the chunks, the logits' dtype

// These options make a loss cross-entropy alone.
inline constexpr LossOptions kHardLabels{.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0};

// These convert the options to their list form, and back.
std::vector<double> options_list(const LossOptions& options);
LossOptions options_from(at::ArrayRef<double> list);

// The list form of the sizes is {vocab_size, valid_tokens, chunk_size, memory_cap_mb, min_chunk_size}.
struct HeadSizes {
  int64_t vocab_size = 0;
  int64_t valid_tokens = -1;
  ChunkOptions chunks;
};
std::vector<int64_t> sizes_list(const HeadSizes& sizes);
HeadSizes sizes_from(at::IntArrayRef list);

// An OperatorCall has the arguments of one call of an operator, by their names in its schema. Operators that differ in
// a few arguments share their code: an argument that a schema lacks has the value `otherwise`.
class OperatorCall {
 public:
  OperatorCall(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> values)
      : schema_(schema), values_(values) {}

  template <typename T>
  T get(std::string_view name, T otherwise) const {
    const c10::IValue* value = find(name);
    return value == nullptr ? otherwise : value->to<T>();
  }
  at::Tensor tensor(std::string_view name) const {
    return get(name, at::Tensor());
  }
  OptionalTensor optional(std::string_view name) const {
    return get(name, OptionalTensor());
  }
  // Returns `otherwise` with the options that the schema has. Throws for a name that is none of the expected ones.
  LossOptions loss_options(LossOptions otherwise) const;
  HeadSizes head_sizes() const;

 private:
  const c10::IValue* find(std::string_view name) const;

  const c10::FunctionSchema& schema_;
  at::ArrayRef<c10::IValue> values_;
};

// Adapts `function`, which takes an OperatorCall and returns a tuple, to the dispatcher's calls of an operator.
template <auto* function>
void boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  auto results = function(OperatorCall(op.schema(), torch::jit::last(*stack, count)));
  torch::jit::drop(*stack, count);
  std::apply([&](auto&... result) { torch::jit::push(*stack, std::move(result)...); }, results);
}

// Returns the options of tensors that hold sums: fp32 (fp64 for an fp64 tensor), on its device, without autograd.
at::TensorOptions sum_options(const at::Tensor& tensor);

// Returns a loss's results: metrics_MN[kLoss] reduced by the call's `reduction`, and the metrics without autograd. A
// mean is over the valid tokens, or over `num_tokens` where given; over no token it is 0, and so is its gradient.
// Throws for a `num_tokens` that is negative or not finite.
std::tuple<at::Tensor, at::Tensor> loss_and_metrics(const OperatorCall& call, const at::Tensor& metrics_MN);

// Keeps tensors for the backward pass. Autograd refuses to save those made under torch.inference_mode(), such as a
// teacher's logits or labels; they are constants of the loss, and are kept as they are.
void keep_for_backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list tensors);
torch::autograd::variable_list kept_for_backward(torch::autograd::AutogradContext* ctx);

// Every backward pass calls this: its results are no functions of its inputs to autograd, so that a second derivative
// would silently be wrong. Throws where one may follow (create_graph=True).
void refuse_second_derivative();

} // namespace distill::losses
