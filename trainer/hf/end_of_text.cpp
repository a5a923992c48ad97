#include "trainer/hf/end_of_text.h"

#include <absl/strings/str_cat.h>

#include <filesystem>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/text_config.h"

namespace distill::hf {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKey = "eos_token_id";

bool has_ids(const Json& keys) {
  return keys.is_object() && keys.contains(kKey) && !keys[kKey].is_null();
}

} // namespace

absl::StatusOr<std::vector<int64_t>> end_of_text_ids(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string file = (fs::path(folder) / "generation_config.json").string();
  Json json;
  if (fs::exists(file, error)) {
    ASSIGN_OR_RETURN(const std::string text, base::read_text_file(file, /*max_bytes=*/8 << 20));
    ASSIGN_OR_RETURN(json, base::parse_json(text, file, /*max_depth=*/16));
  } else {
    file = (fs::path(folder) / "config.json").string();
    ASSIGN_OR_RETURN(json, read_config_json(folder));
    if (!has_ids(json)) {
      json = text_keys(json);
    }
  }
  if (!has_ids(json)) {
    return std::vector<int64_t>();
  }
  const Json& found = json[kKey];
  std::vector<int64_t> ids;
  for (const auto& id : found.is_array() ? found : Json::array({found})) {
    if (!id.is_number_integer() || id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": `eos_token_id`: expected an id or a list of ids, found ", found.dump()));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

} // namespace distill::hf
