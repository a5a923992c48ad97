#include "trainer/report/line_reader.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "data/base/status_macros.h"

namespace distill::report {
namespace {

constexpr int kMaxDepth = 16;

// Tells whether brackets outside of texts are nested so deeply that writing the value out could use up the stack.
bool too_deep(const std::string& line) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) {
        return true;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<Json> parse_object(const std::string& line, const std::string& source) {
  constexpr size_t kShown = 60;
  std::string found = "";
  if (too_deep(line)) {
    found = absl::StrCat("more than ", kMaxDepth, " levels of brackets");
  } else {
    try {
      Json object = Json::parse(line);
      if (object.is_object()) {
        return object;
      }
      found = object.type_name();
    } catch (const Json::exception&) {
      found = line.empty() ? "an empty line" : "a damaged line: " + line.substr(0, kShown);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(source, ": expected a JSON object, found ", found));
}

} // namespace

absl::StatusOr<bool> for_each_line(
    const std::string& path, const std::function<absl::Status(int64_t, const std::string&)>& visit) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) {
    return false;
  }
  if (kind != std::filesystem::file_type::regular) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a file, found ", error ? error.message() : "something else"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    RETURN_IF_ERROR(visit(++number, line));
  }
  return file.bad() ? absl::StatusOr<bool>(absl::InvalidArgumentError(
                          absl::StrCat(path, ":", number + 1, ": cannot be read any further: ", std::strerror(errno))))
                    : absl::StatusOr<bool>(true);
}

absl::StatusOr<bool> for_each_object(
    const std::string& path, const std::function<absl::Status(int64_t, Json&)>& visit) {
  return for_each_line(path, [&](int64_t number, const std::string& line) -> absl::Status {
    ASSIGN_OR_RETURN(Json object, parse_object(line, absl::StrCat(path, ":", number)));
    return visit(number, object);
  });
}

absl::StatusOr<int64_t> step_of(const Json& object, const std::string& path, int64_t number) {
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer() || step->get<int64_t>() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":", number, ": expected a whole number as \"step\", found ",
        step == object.end() ? std::string("none") : step->dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return step->get<int64_t>();
}

} // namespace distill::report
