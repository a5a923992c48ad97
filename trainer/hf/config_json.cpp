#include "trainer/hf/config_json.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/strip.h>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/config_keys.h"
#include "trainer/hf/families.h"
#include "trainer/hf/key_reader.h"
#include "trainer/hf/rope_keys.h"
#include "trainer/hf/stored_model.h"
#include "trainer/hf/text_config.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxSize = int64_t{1} << 24; // of any one dimension
constexpr int64_t kMaxLayers = 4096;
constexpr double kMaxParameters = 1e13;

// Reads one configuration and collects the problems in it.
class ConfigReader : private KeyReader {
 public:
  ConfigReader(TextConfig text, const absl::flat_hash_set<std::string>& ignored, Notes* notes)
      : KeyReader(std::move(text.json), std::move(text.source), notes), ignored_(ignored) {}

  absl::StatusOr<models::ModelConfig> read() {
    read_family();
    read_shape();
    read_dtype();
    if (family_.describe != nullptr) {
      family_.describe(*this, config_, kind_);
    }
    read_windows();
    full_kind_ = kind_;
    if (family_.describe_full != nullptr) {
      std::vector<int64_t> full;
      for (int64_t layer = 0; layer < num_layers_; ++layer) {
        if (!slides_[static_cast<size_t>(layer)]) {
          full.push_back(layer);
        }
      }
      family_.describe_full(*this, full, full_kind_);
    }
    linear_kind_ = kind_;
    if (family_.describe_linear != nullptr) {
      family_.describe_linear(*this, linear_kind_);
    }
    config_.ropes = read_ropes(
        *this, family_.rope, config_.max_position_embeddings, kind_.attention.head_dim, full_kind_.attention.head_dim);
    check_size();
    read_layers();
    refuse_other_keys(*this, ignored_);
    RETURN_IF_ERROR(problems().status(absl::StatusCode::kInvalidArgument));
    if (const absl::Status status = models::check_computable(config_); !status.ok()) {
      complain(std::string(status.message()));
    }
    RETURN_IF_ERROR(problems().status(absl::StatusCode::kInvalidArgument));
    return config_;
  }

  // Whether the file says in which dtype the weights are stored.
  bool has_dtype() const {
    return has_dtype_;
  }

 private:
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
    add_defaults(Json::parse(family_.defaults));
  }

  void read_shape() {
    config_.vocab_size = required_integer("vocab_size", kMaxSize);
    config_.hidden_size = required_integer("hidden_size", kMaxSize);
    kind_.mlp.ffn = dense_ffn_ = required_integer("intermediate_size", kMaxSize);
    num_layers_ = required_integer("num_hidden_layers", kMaxLayers);
    models::AttentionSpec& attention = kind_.attention;
    attention.heads = required_integer("num_attention_heads", kMaxSize);
    attention.kv_heads = optional_integer("num_key_value_heads", 1, kMaxSize).value_or(attention.heads);
    if (attention.heads % attention.kv_heads != 0) {
      complain(
          "num_attention_heads: a multiple of num_key_value_heads (", attention.kv_heads, ") is expected, found ",
          attention.heads);
    }
    read_head_dim();
    config_.max_position_embeddings = required_integer("max_position_embeddings", int64_t{1} << 31);
    kind_.norm_eps = required_number("rms_norm_eps", 0.0, 1.0);
    config_.final_norm_eps = kind_.norm_eps;
    if (const Json* range = take("initializer_range")) {
      config_.initializer_range = number("initializer_range", *range, 0.0, 1.0, 0.02);
    }
    config_.tie_word_embeddings = boolean("tie_word_embeddings", false);
  }

  // Of a model all of whose layers have experts, if one has.
  void check_size() {
    const auto mixer_rows = [](const models::LayerKind& kind) { // of q, k, v, o
      const models::AttentionSpec& attention = kind.attention;
      return kind.delta ? static_cast<double>(kind.delta->conv_channels() + 2 * kind.delta->value_width())
                        : static_cast<double>(attention.query_rows() + attention.query_width()) +
              2.0 * static_cast<double>(attention.key_value_width());
    };
    const std::optional<models::ExpertsSpec>& experts = kind_.mlp.experts;
    const double block = static_cast<double>(config_.hidden_size) *
        (3.0 * static_cast<double>(kind_.mlp.ffn) * static_cast<double>(experts ? experts->count : 1) +
         std::max({mixer_rows(kind_), mixer_rows(full_kind_), mixer_rows(linear_kind_)}));
    const double total = block * static_cast<double>(num_layers_) +
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
    models::AttentionSpec& attention = kind_.attention;
    const std::optional<int64_t> given = optional_integer("head_dim", 1, 4096);
    attention.head_dim = given.value_or(config_.hidden_size / attention.heads);
    if (!given && config_.hidden_size % attention.heads != 0) {
      complain(
          "hidden_size: a multiple of num_attention_heads (", attention.heads,
          ") is expected where head_dim is not given, found ", config_.hidden_size);
    } else if (attention.head_dim % 2 != 0) {
      complain("head_dim: an even number is expected (RoPE rotates pairs), found ", attention.head_dim);
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

  // Which layers have a window, and which one.
  void read_windows() {
    const std::optional<int64_t> window = optional_integer("sliding_window", 1, int64_t{1} << 31);
    const bool switched = family_.windows == WindowLayers::kLater || family_.windows == WindowLayers::kSwitched ||
        family_.windows == WindowLayers::kListed;
    const bool is_on = !switched || boolean("use_sliding_window", false);
    const bool has_window = window && is_on && family_.windows != WindowLayers::kNone;
    if (has_pattern()) {
      take("sliding_window_pattern"); // which layer_types overrules
    }
    const std::optional<std::vector<bool>> listed = listed_windows();
    if (family_.describe_linear != nullptr && !listed) {
      linear_ = layers_at_intervals();
    }
    std::vector<bool> slides = listed ? *listed : default_windows(has_window);
    if (family_.windows == WindowLayers::kPatternThenFull && !slides.empty() && slides.back()) {
      slides.back() = false;
      if (listed) {
        note("layer_types: the last layer has no window, as by transformers; found sliding_attention");
      }
    }
    const bool any = std::find(slides.begin(), slides.end(), true) != slides.end();
    if (listed && any && !has_window) {
      complain(
          "layer_types: full_attention is expected ",
          family_.windows == WindowLayers::kNone
              ? absl::StrCat("for model_type \"", config_.model_type, "\", whose layers have no window")
              : absl::StrCat(
                    "where no window is set (sliding_window", switched ? " with use_sliding_window: true" : "", ")"),
          ", found sliding_attention");
    } else if (
        listed && has_window && (family_.windows == WindowLayers::kAll || family_.windows == WindowLayers::kSwitched) &&
        slides != default_windows(true)) {
      complain(
          "layer_types: sliding_attention is expected for model_type \"", config_.model_type,
          "\", all of whose layers have the window, found full_attention");
    } else if (window && !is_default("sliding_window") && is_on && !any) {
      note(
          "sliding_window ", *window, " has no effect, since no layer has a window (",
          listed ? "layer_types"
              : family_.windows == WindowLayers::kLater
              ? absl::StrCat("max_window_layers ", later_windows(), " of ", num_layers_, " layers")
              : absl::StrCat("model_type ", config_.model_type),
          ")");
    }
    slides.resize(static_cast<size_t>(num_layers_)); // of another size after a complaint
    linear_.resize(static_cast<size_t>(num_layers_));
    slides_ = std::move(slides);
    window_ = has_window ? window : std::nullopt;
  }

  bool has_pattern() const {
    return family_.windows == WindowLayers::kPattern || family_.windows == WindowLayers::kPatternThenFull;
  }

  // The kind of each layer: layers differ in whether they have a window, in their rope, and in whether they have
  // experts.
  void read_layers() {
    const bool all_rotate = family_.rotates == nullptr;
    const std::vector<bool> rotates =
        all_rotate ? std::vector<bool>(slides_.size(), true) : family_.rotates(*this, window_.has_value(), slides_);
    const std::vector<bool> has_experts = family_.has_experts == nullptr ? std::vector<bool>(slides_.size(), true)
                                                                         : family_.has_experts(*this, num_layers_);
    std::vector<models::LayerKind> each;
    for (size_t layer = 0; layer < slides_.size(); ++layer) {
      models::LayerKind& kind = each.emplace_back(linear_[layer] ? linear_kind_ : slides_[layer] ? kind_ : full_kind_);
      kind.attention.window = slides_[layer] ? window_ : std::nullopt;
      kind.attention.rope = family_.rope.by_layer_type && slides_[layer] ? 1 : 0;
      if (!rotates[layer]) {
        kind.attention.rope.reset();
      }
      if (!has_experts[layer] && kind.mlp.experts) {
        kind.mlp.experts.reset();
        kind.mlp.ffn = dense_ffn_;
      }
    }
    config_.set_layers(each);
  }

  // The first layer with a window in a family whose later layers have one.
  int64_t later_windows() {
    return optional_integer("max_window_layers", 0, int64_t{1} << 31).value_or(num_layers_);
  }

  // Which layers have a window where layer_types is not given.
  std::vector<bool> default_windows(bool has_window) {
    const bool all = family_.windows == WindowLayers::kAll || family_.windows == WindowLayers::kSwitched;
    std::vector<bool> slides(static_cast<size_t>(num_layers_), all && has_window);
    if (!has_window) {
      return slides;
    }
    if (family_.windows == WindowLayers::kListed) {
      complain(
          "layer_types: missing; a list of full_attention and sliding_attention is expected with a sliding_window");
    } else if (family_.windows == WindowLayers::kLater) {
      for (int64_t layer = later_windows(); layer < num_layers_; ++layer) {
        slides[static_cast<size_t>(layer)] = true;
      }
    } else if (has_pattern()) {
      const int64_t pattern = optional_integer("sliding_window_pattern", 1, kMaxLayers).value_or(1);
      for (int64_t layer = 0; layer < num_layers_; ++layer) {
        slides[static_cast<size_t>(layer)] = (layer + 1) % pattern != 0;
      }
    }
    return slides;
  }

  // Which layers are of linear_attention, by full_attention_interval.
  std::vector<bool> layers_at_intervals() {
    const int64_t interval = optional_integer("full_attention_interval", 1, kMaxLayers).value_or(4);
    std::vector<bool> linear;
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      linear.push_back((layer + 1) % interval != 0);
    }
    return linear;
  }

  // Keeps which layers of layer_types are of linear_attention. A full_attention_interval beside the list must say the
  // same: transformers reads the list alone, but other programs the interval.
  void read_linear(const Json& types) {
    for (const Json& type : types) {
      linear_.push_back(type == "linear_attention");
    }
    const Json* interval = take("full_attention_interval");
    if (interval != nullptr && linear_.size() == static_cast<size_t>(num_layers_) && linear_ != layers_at_intervals()) {
      complain(
          "layer_types: full_attention in each full_attention_interval-th layer (", text(*interval),
          ") and linear_attention in the others is expected, found ", text(types),
          "; remove full_attention_interval if the list is right");
    }
  }

  // Which layers have a window, by layer_types; nullopt: the key is not given.
  std::optional<std::vector<bool>> listed_windows() {
    const Json* types = take("layer_types");
    if (types == nullptr) {
      return std::nullopt;
    }
    const bool has_linear = family_.describe_linear != nullptr;
    const std::string other = has_linear ? "linear_attention" : "sliding_attention";
    std::vector<bool> slides;
    for (const Json& type : *types) {
      if (type != "full_attention" && type != other) {
        complain("layer_types: full_attention or ", other, " is expected, found ", text(type));
        return slides;
      }
      slides.push_back(type == "sliding_attention");
    }
    if (has_linear) {
      read_linear(*types);
    }
    if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers_) {
      complain(
          "layer_types: an entry for each of num_hidden_layers, ", num_layers_, ", is expected, found ", text(*types));
    }
    return slides;
  }

  const absl::flat_hash_set<std::string>& ignored_;
  models::ModelConfig config_;
  int64_t num_layers_ = 1;
  models::LayerKind kind_; // of all layers, but for windows, ropes and experts
  models::LayerKind full_kind_; // the same of layers without a window
  models::LayerKind linear_kind_; // the same of layers of linear_attention
  std::vector<bool> slides_; // which layers have the window
  std::vector<bool> linear_; // which layers are of linear_attention
  std::optional<int64_t> window_; // nullopt: none has one
  int64_t dense_ffn_ = 1; // of layers without experts
  Family family_{}; // llama's mathematics where the file names none that is supported
  bool has_dtype_ = false;
};

struct ParsedConfig {
  models::ModelConfig config;
  bool has_dtype;
};

absl::StatusOr<ParsedConfig> parse(
    Json json, const std::string& source, const std::vector<std::string>& ignored, Notes* notes) {
  const absl::flat_hash_set<std::string> keys(ignored.begin(), ignored.end());
  ASSIGN_OR_RETURN(TextConfig text, text_config(std::move(json), source, keys, notes));
  ConfigReader reader(std::move(text), keys, notes);
  ASSIGN_OR_RETURN(models::ModelConfig config, reader.read());
  return ParsedConfig{std::move(config), reader.has_dtype()};
}

} // namespace

absl::StatusOr<models::ModelConfig> parse_model_config(
    const std::string& json_text, const std::string& source, const std::vector<std::string>& ignored, Notes* notes) {
  ASSIGN_OR_RETURN(Json json, parse_config_json(json_text, source));
  ASSIGN_OR_RETURN(ParsedConfig parsed, parse(std::move(json), source, ignored, notes));
  return std::move(parsed.config);
}

absl::StatusOr<models::ModelConfig> read_model_config(
    const std::string& folder, const ConfigOptions& options, Notes* notes) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(folder, ": no such folder; a Hugging Face model folder is expected"));
  }
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  ASSIGN_OR_RETURN(Json json, read_config_json(folder));
  const bool is_multimodal = multimodal_family(json) != nullptr;
  ASSIGN_OR_RETURN(ParsedConfig parsed, parse(std::move(json), path, options.ignored, notes));
  if (is_multimodal && notes != nullptr && !has_weights(folder)) {
    notes->push_back(
        {absl::StrCat(
             folder, ": it has no weights, so that a saved model has none of the other parts: it is a folder of the ",
             "text model alone"),
         /*is_warning=*/true});
  }
  if (options.with_weights) {
    settle_by_tensors(folder, parsed.has_dtype, parsed.config, notes);
  }
  return std::move(parsed.config);
}

} // namespace distill::hf
