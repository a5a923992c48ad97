#include "trainer/hf/config_json.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/strip.h>

#include "data/base/json.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/hf/config_keys.h"
#include "trainer/hf/families.h"
#include "trainer/hf/stored_model.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 8 << 20;
constexpr int64_t kMaxSize = int64_t{1} << 24; // of any one dimension
constexpr int64_t kMaxLayers = 4096;
constexpr double kMaxParameters = 1e13;

// Reads one configuration and collects the problems in it.
class ConfigReader {
 public:
  ConfigReader(Json json, std::string source, const std::vector<std::string>& ignored, Notes* notes)
      : json_(std::move(json)), source_(std::move(source)), ignored_(ignored.begin(), ignored.end()), notes_(notes) {}

  absl::StatusOr<models::ModelConfig> read() {
    read_family();
    read_shape();
    read_dtype();
    read_rope();
    read_sliding_window();
    refuse_other_keys();
    RETURN_IF_ERROR(problems_.status(absl::StatusCode::kInvalidArgument));
    return config_;
  }

  // Whether the file says in which dtype the weights are stored.
  bool has_dtype() const {
    return has_dtype_;
  }

 private:
  template <typename... Args>
  void note(const Args&... args) {
    if (notes_ != nullptr) {
      notes_->push_back({absl::StrCat(source_, ": ", args...), /*is_warning=*/true});
    }
  }

  template <typename... Args>
  void complain(const Args&... args) {
    problems_.add(absl::StrCat(source_, ": ", args...));
  }

  static std::string text(const Json& value) {
    std::string dumped = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (dumped.size() > 100) {
      dumped.replace(100, std::string::npos, "...");
    }
    return dumped;
  }

  // The value; null where the key is absent or its value is null.
  const Json* take(const Json& object, const std::string& key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* take(const std::string& key) {
    known_.insert(key);
    return take(json_, key);
  }

  std::optional<int64_t> as_integer(const std::string& key, const Json& value, int64_t low, int64_t high) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) {
      complain(key, ": an integer in [", low, ", ", high, "] is expected, found ", text(value));
      return std::nullopt;
    }
    if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      complain(key, ": an integer in [", low, ", ", high, "] is expected, found ", text(value));
      return std::nullopt;
    }
    return value.get<int64_t>();
  }

  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high) {
    const Json* value = take(key);
    return value ? as_integer(key, *value, low, high) : std::nullopt;
  }

  int64_t required_integer(const std::string& key, int64_t high) {
    const Json* value = take(key);
    if (value == nullptr) {
      complain(key, ": missing; an integer in [1, ", high, "] is expected");
      return 1;
    }
    return as_integer(key, *value, 1, high).value_or(1);
  }

  // A finite number in (low, high].
  double number(const std::string& key, const Json& value, double low, double high, double fallback) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= low ||
        value.get<double>() > high) {
      complain(key, ": a number above ", low, " and at most ", high, " is expected, found ", text(value));
      return fallback;
    }
    return value.get<double>();
  }

  bool boolean(const std::string& key, bool fallback) {
    const Json* value = take(key);
    if (value != nullptr && !value->is_boolean()) {
      complain(key, ": true or false is expected, found ", text(*value));
      return fallback;
    }
    return value ? value->get<bool>() : fallback;
  }

  void read_family() {
    const Json* type = take("model_type");
    if (type == nullptr || !type->is_string()) {
      complain(
          "model_type: ", type ? "a string is expected, found " + text(*type) : "missing", "; ", family_names(),
          " is expected");
      return;
    }
    config_.model_type = type->get<std::string>();
    const Family* family = find_family(config_.model_type);
    if (family == nullptr) {
      complain("model_type: \"", config_.model_type, "\" is not supported; ", family_names(), " is expected");
      return;
    }
    family_ = *family;
    family_.describe(config_);
  }

  void read_shape() {
    config_.vocab_size = required_integer("vocab_size", kMaxSize);
    config_.hidden_size = required_integer("hidden_size", kMaxSize);
    config_.intermediate_size = required_integer("intermediate_size", kMaxSize);
    config_.num_layers = required_integer("num_hidden_layers", kMaxLayers);
    config_.num_heads = required_integer("num_attention_heads", kMaxSize);
    const bool kv_heads_absent = !json_.contains("num_key_value_heads");
    config_.num_kv_heads =
        optional_integer("num_key_value_heads", 1, kMaxSize)
            .value_or(kv_heads_absent ? family_.default_kv_heads.value_or(config_.num_heads) : config_.num_heads);
    if (config_.num_heads % config_.num_kv_heads != 0) {
      complain(
          "num_attention_heads: a multiple of num_key_value_heads (", config_.num_kv_heads, ") is expected, found ",
          config_.num_heads);
    }
    read_head_dim();
    config_.max_position_embeddings = required_integer("max_position_embeddings", int64_t{1} << 31);
    config_.rms_norm_eps = required_number("rms_norm_eps", 0.0, 1.0);
    if (const Json* range = take("initializer_range")) {
      config_.initializer_range = number("initializer_range", *range, 0.0, 1.0, 0.02);
    }
    config_.tie_word_embeddings = boolean("tie_word_embeddings", false);
    const double block = static_cast<double>(config_.hidden_size) *
        (3.0 * static_cast<double>(config_.intermediate_size) +
         2.0 * static_cast<double>(config_.num_heads + config_.num_kv_heads) * static_cast<double>(config_.head_dim));
    const double total = block * static_cast<double>(config_.num_layers) +
        2.0 * static_cast<double>(config_.vocab_size) * static_cast<double>(config_.hidden_size);
    if (total > kMaxParameters) {
      complain(
          "hidden_size, intermediate_size, num_hidden_layers, vocab_size: a model of ", total, " parameters; at most ",
          kMaxParameters, " are expected");
    }
  }

  double required_number(const std::string& key, double low, double high) {
    const Json* value = take(key);
    if (value == nullptr) {
      complain(key, ": missing; a number above ", low, " and at most ", high, " is expected");
      return high;
    }
    return number(key, *value, low, high, high);
  }

  void read_head_dim() {
    const int64_t derived = family_.default_head_dim.value_or(config_.hidden_size / config_.num_heads);
    const std::optional<int64_t> given = optional_integer("head_dim", 1, 4096);
    config_.head_dim = given.value_or(derived);
    if (!given && !family_.default_head_dim && config_.hidden_size % config_.num_heads != 0) {
      complain(
          "hidden_size: a multiple of num_attention_heads (", config_.num_heads,
          ") is expected where head_dim is not given, found ", config_.hidden_size);
    } else if (config_.head_dim % 2 != 0) {
      complain("head_dim: an even number is expected (RoPE rotates pairs), found ", config_.head_dim);
    }
  }

  void read_dtype() {
    const Json* dtype = take("dtype");
    const Json* torch_dtype = take("torch_dtype");
    const char* key = dtype ? "dtype" : "torch_dtype";
    dtype = dtype ? dtype : torch_dtype;
    if (dtype == nullptr) {
      return;
    }
    // "torch.bfloat16" is the text of the dtype itself, float and half are torch's other names of two of them.
    std::string name(absl::StripPrefix(dtype->is_string() ? dtype->get<std::string>() : "", "torch."));
    name = name == "float" ? "float32" : name == "half" ? "float16" : name;
    if (name == "auto") {
      return; // as if the key were not there
    }
    if (name != "float32" && name != "float16" && name != "bfloat16") {
      complain(key, ": float32, float16 or bfloat16 is expected, found ", text(*dtype));
      return;
    }
    config_.dtype = name;
    has_dtype_ = true;
  }

  // transformers takes rope_scaling or, where that is absent or empty, rope_parameters as a whole. A rope_theta inside
  // the one that is taken takes precedence over the key of config.json.
  void read_rope() {
    const Json* theta = take("rope_theta");
    if (theta != nullptr) {
      config_.rope_theta = number("rope_theta", *theta, 0.0, 1e12, 1e4);
    }
    const Json* parameters = take("rope_parameters");
    const Json* scaling = take("rope_scaling");
    const Json* outer_context = take("original_max_position_embeddings");
    if (scaling != nullptr && is_empty(*scaling)) {
      if (parameters != nullptr) {
        note("rope_scaling is empty (", text(*scaling), "), rope_parameters is used: ", text(*parameters));
      }
      scaling = nullptr;
    }
    const std::string name = scaling ? "rope_scaling" : "rope_parameters";
    const Json* rope = scaling ? scaling : parameters;
    if (rope == nullptr) {
      return;
    }
    if (!rope->is_object()) {
      complain(name, ": an object is expected, found ", text(*rope));
      return;
    }
    read_rope_object(name, *rope, outer_context);
    if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
      note(
          "rope_scaling ", text(*scaling), " is used in the place of rope_parameters ", text(*parameters),
          ", as by transformers; rope_theta is ", config_.rope_theta);
    }
    const Json* inner = take(*rope, "rope_theta");
    if (theta != nullptr && inner != nullptr && *theta != *inner) {
      note(
          "rope_theta ", text(*theta), " is not used, since ", name, ".rope_theta, ", text(*inner),
          ", takes precedence over it");
    }
  }

  // What is false for Python.
  static bool is_empty(const Json& value) {
    return value.empty() || value == false || value == 0 || value == "";
  }

  void read_rope_object(const std::string& name, const Json& rope, const Json* outer_context) {
    const Json* type_value = take(rope, "rope_type");
    type_value = type_value ? type_value : take(rope, "type");
    if (type_value != nullptr && !type_value->is_string()) {
      complain(name, ".rope_type: a string is expected, found ", text(*type_value));
      return;
    }
    const std::string type = type_value ? type_value->get<std::string>() : "default";
    absl::flat_hash_set<std::string> allowed{"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    if (type == "llama3") {
      read_llama3(name, rope, outer_context);
      allowed.insert({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    } else if (type == "linear") {
      config_.rope_linear_factor = rope_number(name, rope, "factor", 1e6);
      allowed.insert({"factor"});
    } else if (type != "default") {
      complain(name, ".rope_type: \"", type, "\" is not supported; default, linear or llama3 is expected");
      return;
    }
    if (const Json* theta = take(rope, "rope_theta")) {
      config_.rope_theta = number(name + ".rope_theta", *theta, 0.0, 1e12, 1e4);
    }
    if (const Json* partial = take(rope, "partial_rotary_factor"); partial != nullptr && *partial != 1) {
      complain(name, ".partial_rotary_factor: only 1 is supported, found ", text(*partial));
    }
    for (const auto& [key, value] : rope.items()) {
      if (!allowed.contains(key) && !value.is_null()) {
        complain(name, ".", key, ": not known for rope_type \"", type, "\" (value ", text(value), ")");
      }
    }
  }

  double rope_number(const std::string& name, const Json& rope, const std::string& key, double high) {
    const Json* value = take(rope, key);
    if (value == nullptr) {
      complain(name, ".", key, ": missing; a number above 0 is expected");
      return 1.0;
    }
    return number(absl::StrCat(name, ".", key), *value, 0.0, high, 1.0);
  }

  void read_llama3(const std::string& name, const Json& rope, const Json* outer_context) {
    models::Llama3RopeScaling scaling;
    scaling.factor = rope_number(name, rope, "factor", 1e6);
    scaling.low_freq_factor = rope_number(name, rope, "low_freq_factor", 1e6);
    scaling.high_freq_factor = rope_number(name, rope, "high_freq_factor", 1e6);
    const std::string key = "original_max_position_embeddings";
    const Json* context = outer_context ? outer_context : take(rope, key);
    scaling.original_max_position_embeddings = config_.max_position_embeddings;
    if (context != nullptr) {
      scaling.original_max_position_embeddings =
          as_integer(absl::StrCat(name, ".", key), *context, 1, int64_t{1} << 31).value_or(1);
    }
    if (scaling.high_freq_factor <= scaling.low_freq_factor && problems_.empty()) {
      complain(
          name, ".high_freq_factor: a number above low_freq_factor (", scaling.low_freq_factor, ") is expected, found ",
          scaling.high_freq_factor);
    }
    config_.rope_scaling = scaling;
  }

  void read_sliding_window() {
    const std::optional<int64_t> given = optional_integer("sliding_window", 1, int64_t{1} << 31);
    const bool switched = family_.window == SlidingWindow::kSwitched;
    const bool used = !switched || boolean("use_sliding_window", false);
    const int64_t full_layers =
        optional_integer("max_window_layers", 0, int64_t{1} << 31).value_or(kDefaultWindowLayers);
    const bool by_default = family_.window != SlidingWindow::kIgnored && !json_.contains("sliding_window");
    const std::optional<int64_t> window = by_default ? std::optional(kDefaultWindow) : given;
    const std::optional<bool> by_type = has_sliding_layer();
    if (family_.window == SlidingWindow::kRefused) {
      if (window) {
        complain(
            "sliding_window: null is expected for model_type \"", config_.model_type, "\", found ",
            by_default ? absl::StrCat("no such key, which means ", *window) : absl::StrCat(*window));
      }
      return;
    }
    if (by_type.value_or(false) && !(window && used)) {
      complain(
          "layer_types: full_attention is expected where no window is set (sliding_window",
          switched ? " with use_sliding_window: true" : "", "), found sliding_attention");
      return;
    }
    const bool all_layers = family_.window == SlidingWindow::kAlways || (switched && full_layers < config_.num_layers);
    if (window && used && by_type.value_or(all_layers)) {
      config_.sliding_window = window;
    } else if (given && used) {
      note(
          "sliding_window ", *given, " has no effect, since no layer has a window (",
          by_type        ? "layer_types"
              : switched ? absl::StrCat("max_window_layers ", full_layers, " of ", config_.num_layers, " layers")
                         : absl::StrCat("model_type ", config_.model_type),
          ")");
    }
  }

  // Whether layer_types names a layer with a window; nullopt: the key is not given.
  std::optional<bool> has_sliding_layer() {
    const Json* types = take("layer_types");
    if (types == nullptr) {
      return std::nullopt;
    }
    bool found = false;
    for (const Json& type : *types) {
      if (type != "full_attention" && type != "sliding_attention") {
        complain("layer_types: full_attention or sliding_attention is expected, found ", text(type));
        return found;
      }
      found = found || type == "sliding_attention";
    }
    if (!types->is_array() || static_cast<int64_t>(types->size()) != config_.num_layers) {
      complain(
          "layer_types: an entry for each of num_hidden_layers, ", config_.num_layers, ", is expected, found ",
          text(*types));
    }
    return found;
  }

  void refuse_other_keys() {
    if (const Json* quantization = take("quantization_config")) {
      complain(
          "quantization_config: quantised weights are not supported (", text(*quantization),
          "); save the model in bf16, fp16 or fp32 first");
    }
    for (const auto& [key, value] : json_.items()) {
      if (known_.contains(key) || ignored_keys().contains(key) || value.is_null()) {
        continue;
      }
      const auto neutral = neutral_values().find(key);
      if (neutral == neutral_values().end()) {
        if (!ignored_.contains(key)) {
          complain(
              key, ": unknown key (value ", text(value),
              "), which may change the mathematics; if it does not: student.ignore_config_keys (or "
              "teacher.ignore_config_keys): [",
              key, "]");
        }
      } else if (value != neutral->second) {
        complain(key, ": only ", neutral->second.dump(), " is supported, found ", text(value));
      }
    }
  }

  Json json_;
  std::string source_;
  absl::flat_hash_set<std::string> ignored_;
  models::ModelConfig config_;
  Family family_{}; // llama's mathematics where the file names none that is supported
  absl::flat_hash_set<std::string> known_;
  base::ProblemList problems_;
  Notes* notes_;
  bool has_dtype_ = false;
};

struct ParsedConfig {
  models::ModelConfig config;
  bool has_dtype;
};

absl::StatusOr<ParsedConfig> parse(
    const std::string& json_text, const std::string& source, const std::vector<std::string>& ignored, Notes* notes) {
  ASSIGN_OR_RETURN(Json json, base::parse_json(json_text, source, /*max_depth=*/16));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": a JSON object is expected, found ", json.type_name()));
  }
  ConfigReader reader(std::move(json), source, ignored, notes);
  ASSIGN_OR_RETURN(models::ModelConfig config, reader.read());
  return ParsedConfig{std::move(config), reader.has_dtype()};
}

} // namespace

absl::StatusOr<models::ModelConfig> parse_model_config(
    const std::string& json_text, const std::string& source, const std::vector<std::string>& ignored, Notes* notes) {
  ASSIGN_OR_RETURN(ParsedConfig parsed, parse(json_text, source, ignored, notes));
  return std::move(parsed.config);
}

absl::StatusOr<models::ModelConfig> read_model_config(
    const std::string& folder, const ConfigOptions& options, Notes* notes) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(folder, ": no such folder; a Hugging Face model folder is expected"));
  }
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(ParsedConfig parsed, parse(text, path, options.ignored, notes));
  if (options.with_weights) {
    settle_by_tensors(folder, parsed.has_dtype, parsed.config, notes);
  }
  return std::move(parsed.config);
}

} // namespace distill::hf
