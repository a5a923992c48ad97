#include "data/base/json.h"

#include <fstream>
#include <set>

namespace distill::base {
namespace {

struct JsonRefused {
  std::string reason;
};

} // namespace

absl::StatusOr<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& source, int max_depth) {
  using json = nlohmann::ordered_json;
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > max_depth) {
      throw JsonRefused{absl::StrCat("nested deeper than ", max_depth, " levels")};
    }
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw JsonRefused{absl::StrCat("key \"", key, "\" appears twice")};
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const JsonRefused& refused) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": not accepted as JSON: ", refused.reason));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": not valid JSON: ", error.what()));
  }
}

absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > static_cast<uintmax_t>(max_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", error ? error.message() : absl::StrCat(size, " bytes, at most ", max_bytes, " expected")));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

} // namespace distill::base
