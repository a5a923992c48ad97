#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/models/model_config.h"

// The description of a LoRA adapter, as peft has it in adapter_config.json.
namespace distill::hf {

inline constexpr const char* kPeftConfig = "adapter_config.json";

// Which modules: those with one of these names, or whose name ends with one of them after a dot; or, as one text,
// those whose whole name a regular expression matches.
struct ModuleNames {
  std::vector<std::string> names;
  std::optional<std::string> expression;

  bool empty() const {
    return names.empty() && !expression;
  }
  // InvalidArgument: the expression is none.
  absl::StatusOr<bool> match(const std::string& module) const;
};

struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false; // the scale is alpha / sqrt(rank) instead of alpha / rank
  double dropout = 0;
  bool all_linear = false; // every linear module but the lm_head, instead of `targets`
  ModuleNames targets;
  // target_parameters: parameters of transformers' model, such as mlp.experts.down_proj, by whole names or endings
  // after a dot. `excluded` and `layers` do not hold for them.
  std::vector<std::string> parameters;
  ModuleNames excluded;
  std::vector<int64_t> layers; // empty: all
  // Ranks and alphas of modules whose name ends, after a dot, with what a regular expression matches; the first one
  // that does counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> whole; // modules_to_save: trained as they are; a module's name ends with one of them
  std::string base; // base_model_name_or_path; empty: unknown
};

// Parses an adapter_config.json, which is not trusted, of any version of peft. Keys that would change the mathematics
// in a way that is not computed (DoRA, biases, ...) are errors, and so are keys that are not known and have a value.
// Errors name `source` and the key, what was expected and what was found.
absl::StatusOr<PeftConfig> parse_peft_config(std::string_view text, const std::string& source);
absl::StatusOr<PeftConfig> read_peft_config(const std::string& folder);

// The text of an adapter_config.json of the adapter that `adapter` has been resolved to; `config`: as
// with_expert_parameters() returns it.
std::string peft_config_text(const PeftConfig& config, const models::AdapterSpec& adapter);

// Finds the modules of a model that an adapter names. `source`: of errors. `each_name`: every one of the names must
// match a module, and not only one of them. InvalidArgument: no module is named, or one that has no adapter in this
// program: the embedding and the lm_head; or a module of one expert, or a router, which peft adapts as parameters.
absl::StatusOr<models::AdapterSpec> resolve_adapter(
    const PeftConfig& config, const models::ModelConfig& model, const std::string& source, bool each_name);

} // namespace distill::hf
