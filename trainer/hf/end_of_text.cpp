#include "trainer/hf/end_of_text.h"

#include <absl/strings/str_cat.h>

#include <filesystem>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::hf {

absl::StatusOr<std::vector<int64_t>> end_of_text_ids(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string file = (fs::path(folder) / "generation_config.json").string();
  if (!fs::exists(file, error)) {
    file = (fs::path(folder) / "config.json").string();
  }
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(file, /*max_bytes=*/8 << 20));
  ASSIGN_OR_RETURN(const auto json, base::parse_json(text, file, /*max_depth=*/16));
  if (!json.is_object() || !json.contains("eos_token_id") || json["eos_token_id"].is_null()) {
    return std::vector<int64_t>();
  }
  const auto& found = json["eos_token_id"];
  std::vector<int64_t> ids;
  for (const auto& id : found.is_array() ? found : nlohmann::ordered_json::array({found})) {
    if (!id.is_number_integer() || id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": `eos_token_id`: expected an id or a list of ids, found ", found.dump()));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

} // namespace distill::hf
