// Which modules of a model the names of an adapter mean.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <regex>
#include <set>

#include "data/base/status_macros.h"
#include "trainer/hf/peft_config.h"
#include "trainer/models/layout.h"

namespace distill::hf {
namespace {

constexpr size_t kNamesListed = 12;

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
      for (const models::ParamLayout& param : unit.params) {
        for (const models::ParamPart& part : param.parts) {
          if (absl::EndsWith(part.hf_name, kWeight)) {
            RETURN_IF_ERROR(add(unit, param, part));
          }
        }
      }
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
  absl::StatusOr<bool> is_target(const models::UnitLayout& unit, const std::string& module, bool is_block_matrix) {
    if (!config_.layers.empty() &&
        std::find(config_.layers.begin(), config_.layers.end(), unit.block) == config_.layers.end()) {
      return false;
    }
    ASSIGN_OR_RETURN(const bool excluded, config_.excluded.match(module));
    if (excluded) {
      return false;
    }
    if (config_.all_linear) {
      return is_block_matrix;
    }
    ASSIGN_OR_RETURN(const bool matches, config_.targets.match(module));
    for (const std::string& name : config_.targets.names) {
      if (module == name || absl::EndsWith(module, absl::StrCat(".", name))) {
        used_.insert(name);
      }
    }
    return matches;
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
    ASSIGN_OR_RETURN(const bool is_target_of_it, is_target(unit, module, in_block));
    if (in_block && param.may_be_float8 && param.groups == 1) {
      modules_.push_back(module);
    }
    if (!is_target_of_it || (!param.is_matrix && config_.all_linear)) {
      return absl::OkStatus();
    }
    if (!in_block) {
      return fail(absl::StrCat(
          "target modules: expected matrices of decoder blocks, found ", module,
          "; modules_to_save trains it as a whole"));
    }
    if (param.groups > 1) {
      return fail(absl::StrCat(
          "target modules: expected modules that multiply every token, found the expert ", module,
          ": experts' products are grouped by expert and have no adapters; name the attention's modules (q_proj, ",
          "k_proj, v_proj, o_proj), which can have them"));
    }
    if (!param.may_be_float8) {
      return fail(absl::StrCat(
          "target modules: expected no router, found ", module,
          ": an adapter would change which experts a token visits; name the attention's modules"));
    }
    ASSIGN_OR_RETURN(const int64_t rank, pattern_value(config_.rank_pattern, module, config_.rank));
    ASSIGN_OR_RETURN(const double alpha, pattern_value(config_.alpha_pattern, module, config_.alpha));
    const auto divisor = static_cast<double>(rank);
    adapter_.modules.push_back(
        {unit.block, param.name, module, part.first_row, part.rows, rank,
         alpha / (config_.rslora ? std::sqrt(divisor) : divisor)});
    return absl::OkStatus();
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
  std::set<std::string> used_;
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
    const PeftConfig& config, const models::ModelConfig& model, const std::string& source, bool each_name) {
  Resolver resolver(config, model, source);
  RETURN_IF_ERROR(resolver.run());
  std::vector<std::string> unused;
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
  if (adapter.modules.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": target modules: expected some of the model's, found none: the adapter would do nothing; ", have));
  }
  return adapter;
}

} // namespace distill::hf
