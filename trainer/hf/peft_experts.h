#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "trainer/hf/peft_config.h"
#include "trainer/models/layout.h"

// What peft calls the adapters of experts. transformers has the experts of a layer in two parameters, gate_up_proj and
// down_proj of the module mlp.experts, since its version 5. peft adapts a parameter by wrapping the module that has it,
// the experts' B being [outputs, rank * experts]. In transformers 4 each expert was three modules; peft 0.21 reads
// their names, and tensors, as those of the parameters (peft/utils/transformers_weight_conversion.py).
namespace distill::hf {

// Whether the model's experts were modules in transformers 4, so that peft takes names of modules for the parameters.
bool experts_were_modules(const models::ModelConfig& model);
// Of such a model: whether the name of a module ends with one that peft takes for a parameter.
bool is_experts_module(const std::string& module);

// Returns the config as peft reads it for this model: names of experts' modules and of routers, and what all-linear
// means of them, are target_parameters. The parameter of gate_proj and up_proj has the ranks of both. InvalidArgument:
// one of these two is named without the other.
absl::StatusOr<PeftConfig> with_expert_parameters(PeftConfig config, const models::ModelConfig& model);

// The name in transformers' model of the parameter with a product of experts: "model.layers.0.mlp.experts.down_proj".
std::string experts_parameter(const models::ParamLayout& product);

// The tensors of transformers 4 from which one of an experts' adapter is made: for each expert those of its modules. A
// adapter of gate_up has the A of gate_proj above that of up_proj, and B with both as blocks.
struct ExpertTensors {
  std::vector<std::string> names; // the modules of an expert follow each other
  std::vector<int64_t> shape; // of each
};
ExpertTensors tensors_of_experts(const models::ParamLayout& param, const models::ParamPart& part);
// Makes the parameter's tensor of them. `read`: returns one of these tensors, fp32.
at::Tensor joined_experts(
    const models::ParamLayout& param, const ExpertTensors& tensors,
    const std::function<at::Tensor(const std::string& name)>& read);

} // namespace distill::hf
