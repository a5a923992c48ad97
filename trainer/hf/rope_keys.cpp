#include "trainer/hf/rope_keys.h"

namespace distill::hf {
namespace {

using Json = KeyReader::Json;

class RopeReader {
 public:
  RopeReader(KeyReader& keys, int64_t context, models::RopeSpec& rope) : keys_(keys), context_(context), rope_(rope) {}

  // Reads rope's keys as transformers does: it takes rope_scaling or, if that is absent or empty, rope_parameters as a
  // whole. A rope_theta inside the one that it takes takes precedence over the key of config.json.
  void read() {
    const Json* theta = keys_.take("rope_theta");
    if (theta != nullptr) {
      rope_.theta = keys_.number("rope_theta", *theta, 0.0, 1e12, 1e4);
    }
    const Json* parameters = keys_.take("rope_parameters");
    const Json* scaling = keys_.take("rope_scaling");
    const Json* outer_context = keys_.take("original_max_position_embeddings");
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
    if (rope == nullptr) {
      return;
    }
    if (!rope->is_object()) {
      keys_.complain(name, ": an object is expected, found ", KeyReader::text(*rope));
      return;
    }
    read_rope_object(name, *rope, outer_context);
    if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
      keys_.note(
          "rope_scaling ", KeyReader::text(*scaling), " is used in the place of rope_parameters ",
          KeyReader::text(*parameters), ", as by transformers; rope_theta is ", rope_.theta);
    }
    const Json* inner = keys_.take(*rope, "rope_theta");
    if (theta != nullptr && inner != nullptr && *theta != *inner) {
      keys_.note(
          "rope_theta ", KeyReader::text(*theta), " is not used, since ", name, ".rope_theta, ",
          KeyReader::text(*inner), ", takes precedence over it");
    }
  }

 private:
  // Tells whether a value is false for Python.
  static bool is_empty(const Json& value) {
    return value.empty() || value == false || value == 0 || value == "";
  }

  void read_rope_object(const std::string& name, const Json& rope, const Json* outer_context) {
    const Json* type_value = keys_.take(rope, "rope_type");
    type_value = type_value ? type_value : keys_.take(rope, "type");
    if (type_value != nullptr && !type_value->is_string()) {
      keys_.complain(name, ".rope_type: a string is expected, found ", KeyReader::text(*type_value));
      return;
    }
    const std::string type = type_value ? type_value->get<std::string>() : "default";
    absl::flat_hash_set<std::string> allowed{"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    if (type == "llama3") {
      read_llama3(name, rope, outer_context);
      allowed.insert({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    } else if (type == "linear") {
      rope_.linear_factor = rope_number(name, rope, "factor", 1e6);
      allowed.insert({"factor"});
    } else if (type != "default") {
      keys_.complain(name, ".rope_type: \"", type, "\" is not supported; default, linear or llama3 is expected");
      return;
    }
    if (const Json* theta = keys_.take(rope, "rope_theta")) {
      rope_.theta = keys_.number(name + ".rope_theta", *theta, 0.0, 1e12, 1e4);
    }
    if (const Json* partial = keys_.take(rope, "partial_rotary_factor"); partial != nullptr && *partial != 1) {
      keys_.complain(name, ".partial_rotary_factor: only 1 is supported, found ", KeyReader::text(*partial));
    }
    for (const auto& [key, value] : rope.items()) {
      if (!allowed.contains(key) && !value.is_null()) {
        keys_.complain(name, ".", key, ": not known for rope_type \"", type, "\" (value ", KeyReader::text(value), ")");
      }
    }
  }

  double rope_number(const std::string& name, const Json& rope, const std::string& key, double high) {
    const Json* value = keys_.take(rope, key);
    if (value == nullptr) {
      keys_.complain(name, ".", key, ": missing; a number above 0 is expected");
      return 1.0;
    }
    return keys_.number(absl::StrCat(name, ".", key), *value, 0.0, high, 1.0);
  }

  void read_llama3(const std::string& name, const Json& rope, const Json* outer_context) {
    models::Llama3RopeScaling scaling;
    scaling.factor = rope_number(name, rope, "factor", 1e6);
    scaling.low_freq_factor = rope_number(name, rope, "low_freq_factor", 1e6);
    scaling.high_freq_factor = rope_number(name, rope, "high_freq_factor", 1e6);
    const std::string key = "original_max_position_embeddings";
    const Json* context = outer_context ? outer_context : keys_.take(rope, key);
    scaling.original_max_position_embeddings = context_;
    if (context != nullptr) {
      scaling.original_max_position_embeddings =
          keys_.as_integer(absl::StrCat(name, ".", key), *context, 1, int64_t{1} << 31).value_or(1);
    }
    if (scaling.high_freq_factor <= scaling.low_freq_factor && keys_.problems().empty()) {
      keys_.complain(
          name, ".high_freq_factor: a number above low_freq_factor (", scaling.low_freq_factor, ") is expected, found ",
          scaling.high_freq_factor);
    }
    rope_.llama3 = scaling;
  }

  KeyReader& keys_;
  int64_t context_; // max_position_embeddings
  models::RopeSpec& rope_;
};

} // namespace

void read_rope(KeyReader& keys, int64_t context, models::RopeSpec& rope) {
  RopeReader(keys, context, rope).read();
}

} // namespace distill::hf
