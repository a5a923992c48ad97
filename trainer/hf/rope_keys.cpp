#include "trainer/hf/rope_keys.h"

namespace distill::hf {
namespace {

using Json = KeyReader::Json;

class RopeReader {
 public:
  RopeReader(KeyReader& keys, const FamilyRope& family, int64_t context, int64_t head_dim, int64_t full_head_dim)
      : keys_(keys), family_(family), context_(context), head_dim_(head_dim), full_head_dim_(full_head_dim) {}

  std::vector<models::RopeSpec> read() {
    theta_ = keys_.take("rope_theta");
    const Json* parameters = keys_.take("rope_parameters");
    const Json* scaling = keys_.take("rope_scaling");
    outer_context_ = keys_.take("original_max_position_embeddings");
    if (family_.partial) {
      outer_partial_ = keys_.take("partial_rotary_factor");
    }
    for (const auto& [name, rope] : {std::pair("rope_parameters", parameters), std::pair("rope_scaling", scaling)}) {
      if (rope != nullptr && !is_empty(*rope) && !rope->is_object()) {
        keys_.complain(name, ": an object is expected, found ", KeyReader::text(*rope));
        return {};
      }
    }
    return family_.by_layer_type ? read_by_type(parameters, scaling)
                                 : std::vector<models::RopeSpec>{read_one(parameters, scaling)};
  }

 private:
  // transformers takes rope_scaling or, if that is absent or empty, rope_parameters as a whole. A rope_theta inside the
  // one that it takes takes precedence over the key of config.json.
  models::RopeSpec read_one(const Json* parameters, const Json* scaling) {
    if (scaling != nullptr && is_empty(*scaling)) {
      if (parameters != nullptr) {
        keys_.note(
            "rope_scaling is empty (", KeyReader::text(*scaling),
            "), rope_parameters is used: ", KeyReader::text(*parameters));
      }
      scaling = nullptr;
    }
    const std::string name = scaling ? "rope_scaling" : "rope_parameters";
    const Json* rope = scaling ? scaling : parameters;
    models::RopeSpec spec =
        read_object(name, rope ? *rope : Json::object(), head_dim_, theta_, "rope_theta", family_.theta);
    if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
      keys_.note(
          "rope_scaling ", KeyReader::text(*scaling), " is used in the place of rope_parameters ",
          KeyReader::text(*parameters), ", as by transformers; rope_theta is ", spec.theta);
    }
    const Json* inner = rope ? keys_.take(*rope, "rope_theta") : nullptr;
    if (theta_ != nullptr && inner != nullptr && *theta_ != *inner) {
      keys_.note(
          "rope_theta ", KeyReader::text(*theta_), " is not used, since ", name, ".rope_theta, ",
          KeyReader::text(*inner), ", takes precedence over it");
    }
    return spec;
  }

  // As transformers does it, the keys of rope_scaling take precedence over those of rope_parameters.full_attention, and
  // rope_theta is that of full_attention alone.
  std::vector<models::RopeSpec> read_by_type(const Json* parameters, const Json* scaling) {
    Json full = Json::object(), sliding = Json::object();
    const Json given = parameters ? *parameters : Json::object();
    for (const auto& [key, value] : given.items()) {
      if ((key != "full_attention" && key != "sliding_attention") || (!value.is_object() && !value.is_null())) {
        keys_.complain(
            "rope_parameters.", key, ": objects full_attention and sliding_attention are expected, found ",
            KeyReader::text(value));
      } else if (!value.is_null()) {
        (key == "full_attention" ? full : sliding) = value;
      }
    }
    if (scaling != nullptr && !is_empty(*scaling)) {
      full.update(*scaling);
    }
    const char* sliding_key = family_.sliding_theta_key;
    const Json* sliding_theta = sliding_key ? keys_.take(sliding_key) : nullptr;
    std::vector<models::RopeSpec> ropes{
        read_object("rope_parameters.full_attention", full, full_head_dim_, theta_, "rope_theta", family_.theta),
        read_object(
            "rope_parameters.sliding_attention", sliding, head_dim_, sliding_theta, sliding_key ? sliding_key : "",
            family_.sliding_theta)};
    if (theta_ != nullptr && sliding_key == nullptr && !sliding.contains("rope_theta") &&
        ropes[0].theta != ropes[1].theta) {
      keys_.note(
          "rope_theta ", KeyReader::text(*theta_),
          " is that of full_attention alone, as by transformers; that of "
          "sliding_attention is ",
          ropes[1].theta);
    }
    return ropes;
  }

  // Tells whether a value is false for Python.
  static bool is_empty(const Json& value) {
    return value.empty() || value == false || value == 0 || value == "";
  }

  // `theta`, of the key `theta_key`: where the object has none; null: `default_theta`.
  models::RopeSpec read_object(
      const std::string& name, const Json& rope, int64_t head_dim, const Json* theta, const std::string& theta_key,
      double default_theta) {
    models::RopeSpec spec{.theta = default_theta, .dim = head_dim};
    if (theta != nullptr) {
      spec.theta = keys_.number(theta_key, *theta, 0.0, 1e12, 1e4);
    }
    const Json* type_value = keys_.take(rope, "rope_type");
    type_value = type_value ? type_value : keys_.take(rope, "type");
    if (type_value != nullptr && !type_value->is_string()) {
      keys_.complain(name, ".rope_type: a string is expected, found ", KeyReader::text(*type_value));
      return spec;
    }
    if (const Json* inner = keys_.take(rope, "rope_theta")) {
      spec.theta = keys_.number(name + ".rope_theta", *inner, 0.0, 1e12, 1e4);
    }
    std::string type = type_value ? type_value->get<std::string>() : "default";
    if (family_.all_long && (type == "su" || type == "yarn")) {
      type = "longrope";
    }
    absl::flat_hash_set<std::string> allowed{"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    if (family_.sections) {
      allowed.insert({"mrope_section", "mrope_interleaved"});
    }
    const bool is_proportional = family_.proportional && type == "proportional";
    if (!is_proportional) {
      read_partial(name, rope, spec);
    }
    if (is_proportional) {
      read_proportional(name, rope, spec);
      allowed.insert({"factor"});
    } else if (type == "llama3") {
      read_llama3(name, rope, spec);
      allowed.insert({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    } else if (type == "linear") {
      spec.linear_factor = rope_number(name, rope, "factor", 1e6);
      allowed.insert({"factor"});
    } else if (type == "yarn") {
      read_yarn(name, rope, spec);
      allowed.insert(
          {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
           "mscale_all_dim", "truncate"});
    } else if (type == "longrope") {
      read_longrope(name, rope, spec);
      allowed.insert({"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"});
    } else if (type != "default") {
      keys_.complain(
          name, ".rope_type: \"", type, "\" is not supported; default, linear, llama3, yarn",
          family_.proportional ? ", proportional" : "", " or longrope is expected");
      return spec;
    }
    if (family_.scaled_queries) {
      spec.query_scaling = models::QueryScaling{
          .beta = rope_number(name, rope, "llama_4_scaling_beta", 1e6),
          .original_max_position_embeddings = original_context(name, rope)};
      allowed.insert({"llama_4_scaling_beta", "original_max_position_embeddings", "max_position_embeddings"});
    }
    for (const auto& [key, value] : rope.items()) {
      if (!allowed.contains(key) && !value.is_null()) {
        keys_.complain(name, ".", key, ": not known for rope_type \"", type, "\" (value ", KeyReader::text(value), ")");
      }
    }
    return spec;
  }

  // The share of each head that is rotated.
  void read_partial(const std::string& name, const Json& rope, models::RopeSpec& spec) {
    const Json* inner = keys_.take(rope, "partial_rotary_factor");
    const Json* given = inner ? inner : outer_partial_;
    const Json by_default = family_.default_partial;
    const Json* partial = given == nullptr && family_.default_partial != 1 ? &by_default : given;
    if (partial == nullptr) {
      return;
    }
    if (!family_.partial) {
      if (*partial != 1) {
        keys_.complain(name, ".partial_rotary_factor: only 1 is supported, found ", KeyReader::text(*partial));
      }
      return;
    }
    const double share =
        keys_.number(inner ? name + ".partial_rotary_factor" : "partial_rotary_factor", *partial, 0.0, 1.0, 1.0);
    const int64_t head_dim = spec.dim;
    spec.dim = static_cast<int64_t>(static_cast<double>(head_dim) * share);
    if (spec.dim % 2 != 0 || spec.dim == 0) {
      keys_.complain(
          "partial_rotary_factor: an even number of elements of each head of ", head_dim, " is expected, found ",
          spec.dim, " (", KeyReader::text(*partial), ")");
    }
  }

  // rope_type proportional of transformers' modeling_rope_utils: pairs are those of the whole head, by whose size
  // frequencies are computed, and the first ones turn.
  void read_proportional(const std::string& name, const Json& rope, models::RopeSpec& spec) {
    const Json* partial = keys_.take(rope, "partial_rotary_factor");
    const double share = partial ? keys_.number(name + ".partial_rotary_factor", *partial, 0.0, 1.0, 1.0) : 1.0;
    spec.turning_pairs = static_cast<int64_t>(share * static_cast<double>(spec.dim) / 2);
    if (const Json* factor = keys_.take(rope, "factor")) {
      spec.linear_factor = keys_.number(name + ".factor", *factor, 0.0, 1e6, 1.0);
    }
  }

  // The number of tokens of which the model's own frequencies are.
  int64_t original_context(const std::string& name, const Json& rope) {
    const std::string key = "original_max_position_embeddings";
    const Json* context = outer_context_ ? outer_context_ : keys_.take(rope, key);
    return context ? keys_.as_integer(absl::StrCat(name, ".", key), *context, 1, int64_t{1} << 31).value_or(1)
                   : context_;
  }

  // A number; `absent` where the key is absent, null or, as `or` of Python has it, 0.
  double optional_number(const std::string& name, const Json& rope, const std::string& key, double absent) {
    const Json* value = keys_.take(rope, key);
    return value == nullptr || is_empty(*value) ? absent
                                                : keys_.number(absl::StrCat(name, ".", key), *value, 0.0, 1e9, absent);
  }

  // Null means the ratio of the two contexts.
  double read_factor(const std::string& name, const Json& rope, int64_t original) {
    const Json* value = keys_.take(rope, "factor");
    return value ? keys_.number(name + ".factor", *value, 0.0, 1e6, 1.0)
                 : static_cast<double>(context_) / static_cast<double>(original);
  }

  void read_yarn(const std::string& name, const Json& rope, models::RopeSpec& spec) {
    models::YarnRopeScaling scaling;
    scaling.original_max_position_embeddings = original_context(name, rope);
    if (!rope.contains("factor")) {
      keys_.complain(name, ".factor: missing; a number above 0 is expected");
    }
    scaling.factor = read_factor(name, rope, scaling.original_max_position_embeddings);
    scaling.beta_fast = optional_number(name, rope, "beta_fast", scaling.beta_fast);
    scaling.beta_slow = optional_number(name, rope, "beta_slow", scaling.beta_slow);
    if (const Json* truncate = keys_.take(rope, "truncate")) {
      // transformers does not look for this key in the objects of layer types.
      if (!truncate->is_boolean() || (family_.by_layer_type && *truncate == false)) {
        keys_.complain(
            name, ".truncate: true", family_.by_layer_type ? "" : " or false", " is expected, found ",
            KeyReader::text(*truncate));
      } else {
        scaling.truncate = truncate->get<bool>();
      }
    }
    // The attention factor of modeling_rope_utils: the quotient of two such values, if both are given.
    const auto mscale = [&](double scale) {
      return scaling.factor <= 1 ? 1.0 : 0.1 * scale * std::log(scaling.factor) + 1.0;
    };
    const double over = optional_number(name, rope, "mscale", 0),
                 under = optional_number(name, rope, "mscale_all_dim", 0);
    const Json* given = keys_.take(rope, "attention_factor");
    spec.attention_factor = given ? keys_.number(name + ".attention_factor", *given, 0.0, 1e6, 1.0)
        : over > 0 && under > 0   ? mscale(over) / mscale(under)
                                  : mscale(1);
    spec.yarn = scaling;
  }

  void read_longrope(const std::string& name, const Json& rope, models::RopeSpec& spec) {
    models::LongRopeScaling scaling;
    scaling.original_max_position_embeddings = original_context(name, rope);
    scaling.short_factors = read_factors(name, rope, "short_factor", spec.dim / 2);
    scaling.long_factors = read_factors(name, rope, "long_factor", spec.dim / 2);
    const double factor = read_factor(name, rope, scaling.original_max_position_embeddings);
    const Json* given = keys_.take(rope, "attention_factor");
    const auto original = static_cast<double>(scaling.original_max_position_embeddings);
    spec.attention_factor = given ? keys_.number(name + ".attention_factor", *given, 0.0, 1e6, 1.0)
        : factor <= 1             ? 1.0
                                  : std::sqrt(1 + std::log(factor) / std::log(original));
    spec.longrope = std::move(scaling);
  }

  std::vector<double> read_factors(const std::string& name, const Json& rope, const std::string& key, int64_t count) {
    std::vector<double> factors;
    const Json* list = keys_.take(rope, key);
    for (const Json& value : list != nullptr && list->is_array() ? *list : Json::array()) {
      factors.push_back(keys_.number(absl::StrCat(name, ".", key), value, 0.0, 1e9, 1.0));
    }
    if (static_cast<int64_t>(factors.size()) != count) {
      keys_.complain(
          name, ".", key, ": a list of ", count, " numbers is expected, one for each pair of rotated elements, found ",
          list == nullptr ? "no such key" : absl::StrCat(factors.size()));
      factors.assign(static_cast<size_t>(count), 1.0);
    }
    return factors;
  }

  double rope_number(const std::string& name, const Json& rope, const std::string& key, double high) {
    const Json* value = keys_.take(rope, key);
    if (value == nullptr) {
      keys_.complain(name, ".", key, ": missing; a number above 0 is expected");
      return 1.0;
    }
    return keys_.number(absl::StrCat(name, ".", key), *value, 0.0, high, 1.0);
  }

  void read_llama3(const std::string& name, const Json& rope, models::RopeSpec& spec) {
    models::Llama3RopeScaling scaling;
    scaling.factor = rope_number(name, rope, "factor", 1e6);
    scaling.low_freq_factor = rope_number(name, rope, "low_freq_factor", 1e6);
    scaling.high_freq_factor = rope_number(name, rope, "high_freq_factor", 1e6);
    scaling.original_max_position_embeddings = original_context(name, rope);
    if (scaling.high_freq_factor <= scaling.low_freq_factor && keys_.problems().empty()) {
      keys_.complain(
          name, ".high_freq_factor: a number above low_freq_factor (", scaling.low_freq_factor, ") is expected, found ",
          scaling.high_freq_factor);
    }
    spec.llama3 = scaling;
  }

  KeyReader& keys_;
  const FamilyRope& family_;
  int64_t context_; // max_position_embeddings
  int64_t head_dim_;
  int64_t full_head_dim_;
  const Json* theta_ = nullptr; // keys of config.json itself; null: absent
  const Json* outer_context_ = nullptr;
  const Json* outer_partial_ = nullptr;
};

} // namespace

std::vector<models::RopeSpec> read_ropes(
    KeyReader& keys, const FamilyRope& family, int64_t context, int64_t head_dim, int64_t full_head_dim) {
  return RopeReader(keys, family, context, head_dim, full_head_dim).read();
}

} // namespace distill::hf
