#include "trainer/hf/peft_config.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <set>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 16;
constexpr int64_t kMaxBytes = 16 << 20;
constexpr int64_t kMaxRank = 1 << 16;

// Keys that change the mathematics unless they are null, false, empty or "none".
constexpr const char* kNotComputed[] = {
    "use_dora",
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "layer_replication",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
    "megatron_config"};
// Keys that say how an adapter was made or is used, and nothing about what it computes.
constexpr const char* kNoMathematics[] = {
    "task_type",         "auto_mapping",   "peft_version",        "revision",      "inference_mode",
    "megatron_core",     "loftq_config",   "eva_config",          "corda_config",  "lora_ga_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying", "parent_library"};

bool is_off(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
      ((value.is_array() || value.is_object()) && value.empty()) ||
      (value.is_string() && (value == "none" || value == ""));
}

template <size_t N>
bool contains(const char* const (&keys)[N], const std::string& key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

// Reads the keys, and remembers the first error.
class Keys {
 public:
  Keys(const Json& json, const std::string& source) : json_(json), source_(source) {}

  const absl::Status& status() const {
    return status_;
  }
  // Null: the key is not there, or null.
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  void fail(const std::string& key, const std::string& expected, const Json& found) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(source_, ": ", key, ": expected ", expected, ", found ", brief(found)));
    }
  }

  double number(const char* key, double otherwise, double least, double below, const char* expected) {
    const Json* value = find(key);
    return value == nullptr ? otherwise : number_of(key, *value, otherwise, least, below, expected);
  }
  double number_of(
      const std::string& key, const Json& value, double otherwise, double least, double below, const char* expected) {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() < below)) {
      fail(key, expected, value);
      return otherwise;
    }
    return value.get<double>();
  }
  int64_t rank_of(const std::string& key, const Json& value) {
    if (!value.is_number_integer() || value < 1 || value > kMaxRank) {
      fail(key, absl::StrCat("an integer from 1 to ", kMaxRank), value);
      return 1;
    }
    return value.get<int64_t>();
  }
  bool flag(const char* key) {
    const Json* value = find(key);
    if (value != nullptr && !value->is_boolean()) {
      fail(key, "true or false", *value);
      return false;
    }
    return value != nullptr && value->get<bool>();
  }
  std::vector<std::string> texts(const char* key) {
    const Json* value = find(key);
    std::vector<std::string> texts;
    for (const Json& text : value != nullptr && value->is_array() ? *value : Json::array()) {
      if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
        fail(key, "names", text);
        return {};
      }
      texts.push_back(text.get<std::string>());
    }
    if (value != nullptr && !value->is_array()) {
      fail(key, "a list of names", *value);
    }
    return texts;
  }
  ModuleNames names(const char* key) {
    const Json* value = find(key);
    if (value != nullptr && value->is_string()) {
      return {{}, value->get<std::string>()};
    }
    return {texts(key), std::nullopt};
  }
  const Json& object(const char* key) {
    static const Json empty = Json::object();
    const Json* value = find(key);
    if (value != nullptr && !value->is_object()) {
      fail(key, "an object", *value);
      return empty;
    }
    return value == nullptr ? empty : *value;
  }

  // The keys that are not read by name.
  void check_others(const std::set<std::string>& read) {
    for (const auto& [key, value] : json_.items()) {
      if (read.count(key) > 0 || contains(kNoMathematics, key) || is_off(value)) {
        continue;
      }
      fail(
          key,
          contains(kNotComputed, key) ? "what leaves it off, since this program does not compute it"
                                      : "a key that this program knows, or no value",
          value);
    }
  }

 private:
  const Json& json_;
  const std::string& source_;
  absl::Status status_;
};

std::vector<int64_t> layers_of(Keys& keys) {
  std::vector<int64_t> layers;
  if (const Json* value = keys.find("layers_to_transform")) {
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& layer : list) {
      if (!layer.is_number_unsigned()) {
        keys.fail("layers_to_transform", "numbers of layers", layer);
        return {};
      }
      layers.push_back(layer.get<int64_t>());
    }
  }
  const Json* pattern = keys.find("layers_pattern");
  if (pattern != nullptr && !is_off(*pattern) && *pattern != "layers" && *pattern != Json::array({"layers"})) {
    keys.fail("layers_pattern", "layers", *pattern);
  }
  return layers;
}

// Methods that give the base other weights as well, from which the adapter was trained.
void check_initialisation(Keys& keys) {
  const Json* value = keys.find("init_lora_weights");
  if (value == nullptr || !value->is_string()) {
    return;
  }
  std::string method = value->get<std::string>();
  std::transform(method.begin(), method.end(), method.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* changes_base : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (absl::StartsWith(method, changes_base)) {
      keys.fail(
          "init_lora_weights",
          "an adapter of the weights in the base's folder (peft converts one with path_initial_model_for_weight_conversion)",
          *value);
    }
  }
}

} // namespace

absl::StatusOr<PeftConfig> parse_peft_config(std::string_view text, const std::string& source) {
  ASSIGN_OR_RETURN(const Json json, base::parse_json(text, source, kMaxDepth));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": expected an object, found ", brief(json)));
  }
  Keys keys(json, source);
  PeftConfig config;
  const Json* type = keys.find("peft_type");
  if (type == nullptr || *type != "LORA") {
    keys.fail("peft_type", "LORA", type == nullptr ? Json() : *type);
  }
  const Json* rank = keys.find("r");
  config.rank = keys.rank_of("r", rank == nullptr ? Json() : *rank);
  config.alpha = keys.number("lora_alpha", /*otherwise=*/8, 1e-12, 1e12, "a number above 0");
  config.rslora = keys.flag("use_rslora");
  config.dropout = keys.number("lora_dropout", 0, 0, 1, "a number from 0 to below 1");
  config.targets = keys.names("target_modules");
  if (config.targets.expression) {
    std::string lower = *config.targets.expression;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    config.all_linear = lower == "all-linear";
  }
  config.parameters = keys.texts("target_parameters");
  config.excluded = keys.names("exclude_modules");
  config.layers = layers_of(keys);
  for (const auto& [key, value] : keys.object("rank_pattern").items()) {
    config.rank_pattern.emplace_back(key, keys.rank_of("rank_pattern." + key, value));
  }
  for (const auto& [key, value] : keys.object("alpha_pattern").items()) {
    config.alpha_pattern.emplace_back(
        key, keys.number_of("alpha_pattern." + key, value, 1, 1e-12, 1e12, "a number above 0"));
  }
  config.whole = keys.texts("modules_to_save");
  const Json* base = keys.find("base_model_name_or_path");
  config.base = base != nullptr && base->is_string() ? base->get<std::string>() : "";
  check_initialisation(keys);
  keys.check_others(
      {"peft_type", "r", "lora_alpha", "use_rslora", "lora_dropout", "target_modules", "target_parameters",
       "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save",
       "base_model_name_or_path", "init_lora_weights"});
  RETURN_IF_ERROR(keys.status());
  return config;
}

absl::StatusOr<PeftConfig> read_peft_config(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kPeftConfig);
  const auto text = base::read_text_file(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected the folder of an adapter, with ", kPeftConfig, ", found none"));
  }
  RETURN_IF_ERROR(text.status());
  return parse_peft_config(*text, path);
}

std::string peft_config_text(const PeftConfig& config, const models::AdapterSpec& adapter) {
  const auto names = [](const ModuleNames& modules) -> Json {
    return modules.expression ? Json(*modules.expression) : Json(modules.names);
  };
  Json targets = names(config.targets);
  if (config.all_linear) { // other programs would have to know which modules are linear
    std::set<std::string> leaves;
    for (const models::AdaptedModule& module : adapter.modules) {
      if (!module.is_parameter()) {
        leaves.insert(module.name.substr(module.name.rfind('.') + 1));
      }
    }
    targets = leaves;
  }
  const auto object = [](const auto& pattern) {
    Json json = Json::object();
    for (const auto& [key, value] : pattern) {
      json[key] = value;
    }
    return json;
  };
  const auto alpha = [](double value) -> Json { // peft has integers
    return value == std::floor(value) && value < 1e15 ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  std::vector<std::pair<std::string, Json>> alphas;
  alphas.reserve(config.alpha_pattern.size());
  for (const auto& [key, value] : config.alpha_pattern) {
    alphas.emplace_back(key, alpha(value));
  }
  Json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", config.base.empty() ? Json() : Json(config.base)},
      {"inference_mode", true},
      {"r", config.rank},
      {"lora_alpha", alpha(config.alpha)},
      {"use_rslora", config.rslora},
      {"lora_dropout", config.dropout},
      {"target_modules", targets},
      {"layers_to_transform", config.layers.empty() ? Json() : Json(config.layers)},
      {"rank_pattern", object(config.rank_pattern)},
      {"alpha_pattern", object(alphas)},
      {"modules_to_save", config.whole.empty() ? Json() : Json(config.whole)},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true}};
  if (!config.excluded.empty()) { // a key that peft has only had since its version 0.14
    json["exclude_modules"] = names(config.excluded);
  }
  if (!config.parameters.empty()) { // since 0.17
    json["target_parameters"] = config.parameters;
  }
  return json.dump(2) + "\n";
}

} // namespace distill::hf
