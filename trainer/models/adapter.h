#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace distill::models {

struct UnitLayout;
struct ModelConfig;

// A linear module y = x W^T of a decoder block with a low-rank adapter (LoRA, Hu et al. 2021): y = x W^T + scale *
// (x A^T) B^T, A [rank, inputs], B [rows, rank]. Of experts, whose weights are one parameter: each expert has an A and
// a B of its own, of this rank.
struct AdaptedModule {
  int64_t block = 0;
  std::string product; // the parameter of the block's layout whose rows the module has: qkv, o, gate_up, down
  // Of the module in a model folder, "model.layers.0.self_attn.q_proj"; or, if the adapter is one of a parameter, of
  // that in transformers' model: "model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.gate.weight".
  std::string name;
  int64_t first_row = 0; // of the product
  int64_t rows = 0; // of an expert, if there are experts
  int64_t rank = 0;
  double scale = 0;
  std::string wrapper; // of a parameter: the module after which peft names its tensors; empty: of a module

  bool is_parameter() const {
    return !wrapper.empty();
  }
  const std::string& stored_name() const { // the tensors' names in the files, up to ".lora_A.weight"
    return is_parameter() ? wrapper : name;
  }

  bool operator==(const AdaptedModule&) const = default;
};

// What is trained of a model whose other weights are frozen.
struct AdapterSpec {
  std::vector<AdaptedModule> modules; // in the order of blocks and of each block's layout
  std::vector<std::string> whole; // tensors of the model folder that are trained as they are: "lm_head.weight"
  // The probability with which an element of a product's input is left out of the adapters' product, and the others
  // divided by what remains. The modules of one product (q, k, v) leave out the same elements.
  double dropout = 0;
  uint64_t seed = 0; // of what is left out

  bool trains_whole(const std::string& hf_name) const;
  bool operator==(const AdapterSpec&) const = default;
};

// The prefix of a module's name in the files of an adapter, as peft writes them.
inline constexpr const char* kPeftPrefix = "base_model.model.";
// The endings of a product's name in the layout of what is trained: "qkv.lora_A" has the A of all of its modules, one
// below the other, and "qkv.lora_B.0" the B of the first.
inline constexpr const char* kLoraA = ".lora_A";
inline constexpr const char* kLoraB = ".lora_B.";

// The units of what is trained, in the order of unit_layouts(config); a unit of which nothing is trained has no
// parameters. Without an adapter: unit_layouts(config).
std::vector<UnitLayout> trained_layouts(const ModelConfig& config);

// Elements with which a token is multiplied by the adapters of a block: of experts, those of the ones that it visits.
int64_t adapter_numel(const ModelConfig& config, int64_t block);

// "LoRA of rank 16 on 224 modules (q_proj, v_proj), scale 2, trained as a whole: lm_head".
std::string adapter_text(const AdapterSpec& adapter);

} // namespace distill::models
