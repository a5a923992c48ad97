// Which modules and parameters of a model the names of an adapter mean.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <regex>
#include <set>

#include "data/base/status_macros.h"
#include "trainer/hf/peft_experts.h"
#include "trainer/models/layout.h"
#include "trainer/models/router_balance.h"

namespace distill::hf {
namespace {

constexpr size_t kNamesListed = 12;
constexpr std::string_view kRouter = "router"; // in a block's layout

absl::StatusOr<bool> matches_whole(const std::string& expression, const std::string& text) {
  try {
    return std::regex_match(text, std::regex(expression));
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a regular expression (ECMAScript's syntax), found \"", expression, "\": ", error.what()));
  }
}

template <typename Value>
absl::StatusOr<Value> pattern_value(
    const std::vector<std::pair<std::string, Value>>& pattern, const std::string& module, Value otherwise) {
  for (const auto& [key, value] : pattern) {
    // peft's own rule; a leading ^ is the start of the name.
    const std::string anchored = absl::StartsWith(key, "^") ? key : absl::StrCat("(.*\\.)?(", key, ")");
    ASSIGN_OR_RETURN(const bool matches, matches_whole(anchored, module));
    if (matches) {
      return value;
    }
  }
  return otherwise;
}

constexpr absl::string_view kWeight = ".weight";
constexpr const char* kNameParameters =
    "target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj] gives all experts adapters, mlp.gate.weight "
    "the router one";

bool ends_with_name(const std::string& whole, const std::string& name) {
  return whole == name || absl::EndsWith(whole, absl::StrCat(".", name));
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.size() - kWeight.size());
}

// Finds the parts of a model that an adapter's names mean.
class Resolver {
 public:
  Resolver(const PeftConfig& config, const models::ModelConfig& model, const std::string& source)
      : config_(config), model_(model), source_(source) {}

  absl::Status run() {
    adapter_.dropout = config_.dropout;
    for (const models::UnitLayout& unit : models::unit_layouts(model_)) {
      const size_t first = adapter_.modules.size();
      for (const models::ParamLayout& param : unit.params) {
        for (const models::ParamPart& part : param.parts) {
          if (absl::EndsWith(part.hf_name, kWeight)) {
            RETURN_IF_ERROR(add(unit, param, part));
          }
          if (param.groups == 1 && is_parameter_target(part.hf_name)) {
            RETURN_IF_ERROR(add_parameter(unit, param, part.hf_name, module_of(part.hf_name), part));
          }
        }
        const std::string experts = param.groups > 1 ? experts_parameter(param) : "";
        if (is_parameter_target(experts)) {
          const std::string module = experts.substr(0, experts.rfind('.'));
          RETURN_IF_ERROR(add_parameter(unit, param, experts, module, {"", 0, param.group_rows()}));
        }
      }
      name_wrappers(first);
    }
    if (config_.dropout > 0 && !used_parameters_.empty()) {
      return fail(absl::StrFormat(
          "dropout: expected 0 with target_parameters, as peft does, found %g: an adapter of a parameter is a part of "
          "it, which has no input of its own",
          config_.dropout));
    }
    if (model_.tie_word_embeddings) {
      RETURN_IF_ERROR(check_tied());
    }
    return absl::OkStatus();
  }

  models::AdapterSpec take() {
    return std::move(adapter_);
  }
  const std::set<std::string>& used_names() const {
    return used_;
  }
  const std::set<std::string>& used_parameters() const {
    return used_parameters_;
  }
  const std::vector<std::string>& modules() const { // that can have an adapter
    return modules_;
  }

 private:
  absl::Status fail(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", what));
  }

  bool trains_whole(const std::string& module) {
    bool found = false;
    for (const std::string& name : config_.whole) {
      if (absl::EndsWith(module, name)) {
        used_.insert(name);
        found = true;
      }
    }
    return found;
  }

  // Whether the adapter's targets are to have this module.
  absl::StatusOr<bool> is_target(const models::UnitLayout& unit, const std::string& module, bool is_linear) {
    if (!config_.layers.empty() &&
        std::find(config_.layers.begin(), config_.layers.end(), unit.block) == config_.layers.end()) {
      return false;
    }
    ASSIGN_OR_RETURN(const bool excluded, config_.excluded.match(module));
    if (excluded) {
      return false;
    }
    if (config_.all_linear) {
      return is_linear && !(experts_were_modules(model_) && is_experts_module(module)); // of dense layers neither
    }
    ASSIGN_OR_RETURN(const bool matches, config_.targets.match(module));
    for (const std::string& name : config_.targets.names) {
      if (ends_with_name(module, name)) {
        used_.insert(name);
      }
    }
    return matches;
  }

  bool is_parameter_target(const std::string& parameter) {
    bool found = false;
    for (const std::string& name : config_.parameters) {
      if (ends_with_name(parameter, name)) {
        used_parameters_.insert(name);
        found = true;
      }
    }
    return found;
  }

  // `name`: of the module or the parameter.
  absl::StatusOr<models::AdaptedModule> adapted(
      const models::UnitLayout& unit, const models::ParamLayout& param, const std::string& name,
      const models::ParamPart& part) const {
    ASSIGN_OR_RETURN(const int64_t rank, pattern_value(config_.rank_pattern, name, config_.rank));
    ASSIGN_OR_RETURN(const double alpha, pattern_value(config_.alpha_pattern, name, config_.alpha));
    const auto divisor = static_cast<double>(rank);
    return models::AdaptedModule{
        unit.block,
        param.name,
        name,
        part.first_row,
        part.rows,
        rank,
        alpha / (config_.rslora ? std::sqrt(divisor) : divisor),
        /*wrapper=*/""};
  }

  // `module`: that has the parameter.
  absl::Status add_parameter(
      const models::UnitLayout& unit, const models::ParamLayout& param, const std::string& name,
      const std::string& module, const models::ParamPart& part) {
    if (unit.kind != models::UnitKind::kBlock || param.shape.size() != 2) {
      return fail(absl::StrCat(
          "target_parameters: expected matrices of decoder blocks, found ", name,
          param.is_matrix ? "" : "; modules_to_save trains a norm as a whole"));
    }
    for (const models::AdaptedModule& other : adapter_.modules) {
      if (!other.is_parameter() && other.name == module) {
        return fail(absl::StrCat(
            "target_parameters: expected a parameter of a module that is not among the targets too, found ", name));
      }
    }
    ASSIGN_OR_RETURN(models::AdaptedModule own, adapted(unit, param, name, part));
    own.wrapper = module;
    adapter_.modules.push_back(std::move(own));
    return absl::OkStatus();
  }

  // peft wraps a module once for each of its parameters that has an adapter, in the order of the parameters: the last
  // one's tensors are named after the module, and those before it after its base_layer.
  void name_wrappers(size_t first) {
    for (size_t i = first; i < adapter_.modules.size(); ++i) {
      models::AdaptedModule& inner = adapter_.modules[i];
      const std::string module = inner.wrapper;
      for (size_t outer = i + 1; inner.is_parameter() && outer < adapter_.modules.size(); ++outer) {
        if (adapter_.modules[outer].wrapper == module) {
          absl::StrAppend(&inner.wrapper, ".base_layer");
        }
      }
    }
  }

  absl::Status add(const models::UnitLayout& unit, const models::ParamLayout& param, const models::ParamPart& part) {
    const std::string module = module_of(part.hf_name);
    const bool in_block = unit.kind == models::UnitKind::kBlock && param.is_matrix;
    if (trains_whole(module)) {
      if (in_block) {
        return fail(absl::StrCat(
            "modules_to_save: expected norms, embed_tokens or lm_head, found ", module,
            ", a matrix of a block; name it among the targets"));
      }
      if (param.trained) {
        adapter_.whole.push_back(part.hf_name);
      }
      return absl::OkStatus();
    }
    const bool is_linear = in_block && param.shape.size() == 2 && param.groups == 1 && param.name != kRouter;
    if (is_linear) {
      modules_.push_back(module);
    }
    if (param.groups > 1 && !experts_were_modules(model_)) {
      return absl::OkStatus(); // for peft no module, whatever the folder's tensors are
    }
    ASSIGN_OR_RETURN(const bool is_target_of_it, is_target(unit, module, is_linear));
    if (!is_target_of_it) {
      return absl::OkStatus();
    }
    if (is_linear) {
      ASSIGN_OR_RETURN(models::AdaptedModule own, adapted(unit, param, module, part));
      adapter_.modules.push_back(std::move(own));
      return absl::OkStatus();
    }
    if (!in_block || param.shape.size() != 2) {
      return fail(absl::StrCat(
          "target modules: expected matrices of decoder blocks, found ", module,
          in_block ? "" : "; modules_to_save trains it as a whole"));
    }
    return fail(absl::StrCat(
        "target modules: expected modules that multiply every token, found the ",
        param.name == kRouter ? "router " : "expert ", module, ", which is a parameter; ", kNameParameters));
  }

  // peft trains a copy of each tied module that is named, so that both must be for one to stay the other.
  absl::Status check_tied() {
    const bool embedding = adapter_.trains_whole("model.embed_tokens.weight");
    const bool head = trains_whole("lm_head");
    return embedding == head
        ? absl::OkStatus()
        : fail(absl::StrCat(
              "modules_to_save: expected both of embed_tokens and lm_head, or neither, since they are one matrix in this "
              "model (tie_word_embeddings), found ",
              embedding ? "embed_tokens" : "lm_head", " alone"));
  }

  const PeftConfig& config_;
  const models::ModelConfig& model_;
  const std::string& source_;
  models::AdapterSpec adapter_;
  std::set<std::string> used_, used_parameters_;
  std::vector<std::string> modules_;
};

} // namespace

absl::StatusOr<bool> ModuleNames::match(const std::string& module) const {
  if (expression) {
    return matches_whole(*expression, module);
  }
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return module == name || absl::EndsWith(module, absl::StrCat(".", name));
  });
}

absl::StatusOr<models::AdapterSpec> resolve_adapter(
    const PeftConfig& given, const models::ModelConfig& model, const std::string& source, bool each_name) {
  absl::StatusOr<PeftConfig> named = with_expert_parameters(given, model);
  if (!named.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", std::string(named.status().message())));
  }
  const PeftConfig& config = *named;
  Resolver resolver(config, model, source);
  RETURN_IF_ERROR(resolver.run());
  std::vector<std::string> unused, unused_parameters;
  for (const std::string& name : config.parameters) {
    if (resolver.used_parameters().count(name) == 0) {
      unused_parameters.push_back(name);
    }
  }
  for (const std::vector<std::string>* names : {&config.targets.names, &config.whole}) {
    for (const std::string& name : *names) {
      if (resolver.used_names().count(name) == 0) {
        unused.push_back(name);
      }
    }
  }
  models::AdapterSpec adapter = resolver.take();
  std::set<std::string> leaves;
  for (const std::string& module : resolver.modules()) {
    leaves.insert(module.substr(module.rfind('.') + 1));
  }
  const std::string have =
      absl::StrCat("the model's modules that can have an adapter are ", absl::StrJoin(leaves, ", "));
  if (each_name && !unused.empty()) {
    unused.resize(std::min(unused.size(), kNamesListed));
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": expected names of the model's modules, found names that none has: ", absl::StrJoin(unused, ", "),
        "; ", have));
  }
  if (each_name && !unused_parameters.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": target_parameters: expected names of the model's parameters, found names that none has: ",
        absl::StrJoin(unused_parameters, ", "), models::router_count(model) > 0 ? "; " : "",
        models::router_count(model) > 0 ? kNameParameters : "; the model has no experts"));
  }
  if (adapter.modules.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": target modules: expected some of the model's, found none: the adapter would do nothing; ", have));
  }
  return adapter;
}

} // namespace distill::hf
