#include "trainer/hf/peft_experts.h"

#include <ATen/ATen.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "trainer/hf/families.h"
#include "trainer/models/adapter.h"

namespace distill::hf {
namespace {

// The modules of transformers 4, and the parameter that has each of them now.
struct OldModule {
  absl::string_view name, parameter;
};
constexpr OldModule kOldModules[] = {
    {"gate", "gate.weight"},
    {"gate_proj", "gate_up_proj"},
    {"up_proj", "gate_up_proj"},
    {"down_proj", "down_proj"}};

constexpr std::string_view kExperts = ".experts.";

// Whether this name means the module in every expert, and not in one of them or in a dense layer.
bool names_module(const std::string& name, absl::string_view module) {
  const absl::string_view own = name;
  return own == module || own == absl::StrCat("mlp.", module) || own == absl::StrCat("experts.", module) ||
      own == absl::StrCat("mlp.experts.", module);
}

template <typename Value>
void set_pattern(std::vector<std::pair<std::string, Value>>& pattern, const std::string& key, Value value) {
  const auto found =
      std::find_if(pattern.begin(), pattern.end(), [&key](const auto& entry) { return entry.first == key; });
  if (found == pattern.end()) {
    pattern.emplace_back(key, value);
  } else {
    found->second = value;
  }
}

// The modules that an expert of transformers 4 had in a parameter: those whose rows lie one below the other in it.
std::vector<absl::string_view> modules_of(absl::string_view parameter) {
  std::vector<absl::string_view> modules;
  for (const OldModule& old : kOldModules) {
    if (old.parameter == parameter) {
      modules.push_back(old.name);
    }
  }
  return modules;
}

std::string parameter_leaf(const std::string& product) {
  return absl::StrCat(product, "_proj"); // gate_up, down
}

} // namespace

bool experts_were_modules(const models::ModelConfig& model) {
  const Family* family = find_family(model.model_type);
  return family != nullptr && family->experts_were_modules;
}

bool is_experts_module(const std::string& module) {
  return std::any_of(std::begin(kOldModules), std::end(kOldModules), [&module](const OldModule& old) {
    return absl::EndsWith(module, absl::StrCat(".", old.name));
  });
}

absl::StatusOr<PeftConfig> with_expert_parameters(PeftConfig config, const models::ModelConfig& model) {
  if (!experts_were_modules(model)) {
    return config;
  }
  std::set<absl::string_view> named; // of kOldModules
  std::vector<std::string> remaining;
  for (const std::string& target : config.targets.names) {
    const auto old = std::find_if(std::begin(kOldModules), std::end(kOldModules), [&target](const OldModule& module) {
      return names_module(target, module.name);
    });
    if (old == std::end(kOldModules)) {
      remaining.push_back(target);
    } else {
      named.insert(old->name);
    }
  }
  for (const OldModule& old : kOldModules) {
    if (config.all_linear) {
      named.insert(old.name);
    }
  }
  for (const OldModule& old : kOldModules) {
    const std::string parameter(old.parameter);
    if (named.count(old.name) == 0) {
      continue;
    }
    const std::vector<absl::string_view> modules = modules_of(parameter);
    for (const absl::string_view other : modules) {
      if (named.count(other) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "target modules: expected both of ", absl::StrJoin(modules, " and "),
            ", or neither, since they are one parameter of the experts (", parameter, "), found ", old.name));
      }
    }
    if (std::find(config.parameters.begin(), config.parameters.end(), parameter) == config.parameters.end()) {
      config.parameters.push_back(parameter);
    }
    if (modules.size() > 1) {
      const std::string key = absl::StrCat(".*\\.", parameter);
      const auto count = static_cast<int64_t>(modules.size());
      set_pattern(config.rank_pattern, key, config.rank * count);
      // The scale stays what it is for one module. (peft multiplies by the count with rslora, too.)
      const auto factor = static_cast<double>(count);
      set_pattern(config.alpha_pattern, key, config.alpha * (config.rslora ? std::sqrt(factor) : factor));
    }
  }
  config.targets.names = std::move(remaining);
  return config;
}

std::string experts_parameter(const models::ParamLayout& product) {
  const std::string& tensor = product.parts.front().hf_name;
  return absl::StrCat(tensor.substr(0, tensor.find(kExperts) + kExperts.size()), parameter_leaf(product.name));
}

ExpertTensors tensors_of_experts(const models::ParamLayout& param, const models::ParamPart& part) {
  const std::string product = param.name.substr(0, param.name.find(".lora_"));
  const std::string matrix = part.hf_name.substr(part.hf_name.find(".lora_"));
  const std::string layer = part.hf_name.substr(0, part.hf_name.find(".experts") + kExperts.size() - 1);
  const std::vector<absl::string_view> modules = modules_of(parameter_leaf(product));
  const auto count = static_cast<int64_t>(modules.size());
  ExpertTensors tensors;
  for (int64_t expert = 0; expert < param.groups; ++expert) {
    for (const absl::string_view module : modules) {
      tensors.names.push_back(absl::StrCat(layer, ".", expert, ".", module, matrix));
    }
  }
  tensors.shape = {param.group_rows() / count, param.shape[1] / (part.groups_last ? count : 1)};
  return tensors;
}

at::Tensor joined_experts(
    const models::ParamLayout& param, const ExpertTensors& tensors,
    const std::function<at::Tensor(const std::string& name)>& read) {
  const auto modules = static_cast<int64_t>(tensors.names.size()) / param.groups;
  const int64_t rows = tensors.shape[0], columns = tensors.shape[1];
  const bool blocks = columns < param.shape[1];
  at::Tensor joined = at::zeros(param.shape, at::kFloat);
  for (size_t i = 0; i < tensors.names.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    joined.narrow(0, index * rows, rows)
        .narrow(1, blocks ? index % modules * columns : 0, columns)
        .copy_(read(tensors.names[i]).view({rows, columns}));
  }
  return joined;
}

} // namespace distill::hf
