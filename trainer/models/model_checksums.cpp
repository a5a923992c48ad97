#include "trainer/models/model_checksums.h"

#include <absl/strings/str_split.h>

#include "trainer/models/checksum.h"
#include "trainer/models/json.h"

namespace distill::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = int64_t{16} << 20;
constexpr std::string_view kPrefix = "XXH3 (", kMiddle = ") = ";
constexpr size_t kDigits = 16;

// The checksum and the file of one line; a file in this folder and nothing else.
std::optional<std::pair<uint64_t, std::string>> parse_line(const std::string& line) {
  const size_t around = kPrefix.size() + kMiddle.size() + kDigits;
  if (line.size() <= around || !line.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string name = line.substr(kPrefix.size(), line.size() - around);
  const std::string_view rest = std::string_view(line).substr(kPrefix.size() + name.size());
  const auto sum = parse_checksum(rest.substr(kMiddle.size()));
  const bool plain =
      name != "." && name != ".." && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  return sum && plain && rest.starts_with(kMiddle) ? std::optional(std::pair(*sum, name)) : std::nullopt;
}

} // namespace

std::string checksums_text(const std::map<std::string, uint64_t>& checksums) {
  std::string text;
  for (const auto& [name, sum] : checksums) {
    absl::StrAppend(&text, "XXH3 (", name, ") = ", checksum_text(sum), "\n");
  }
  return text;
}

absl::StatusOr<VerifiedFolder> verify_model_folder(const std::string& folder) {
  const std::string list = (fs::path(folder) / kChecksumsFile).string();
  const auto text = read_text_file(list, kMaxBytes);
  if (!text.ok()) {
    return absl::IsNotFound(text.status()) ? absl::NotFoundError(absl::StrCat(
                                                 folder, ": holds no ", kChecksumsFile,
                                                 ", so that nothing can be compared; distill writes one into every "
                                                 "model folder"))
                                           : text.status();
  }
  VerifiedFolder verified;
  std::vector<std::string> problems;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const auto entry = parse_line(line);
    if (!entry) {
      problems.push_back(
          absl::StrCat(list, ": expected XXH3 (<file>) = <16 digits>, found \"", line.substr(0, 100), "\""));
      continue;
    }
    const std::string file = (fs::path(folder) / entry->second).string();
    const auto sum = file_checksum(file);
    if (!sum.ok()) {
      problems.emplace_back(sum.status().message());
    } else if (*sum != entry->first) {
      problems.push_back(absl::StrCat(
          file, ": is damaged, or its line in ", kChecksumsFile, " is: expected checksum ", checksum_text(entry->first),
          ", found ", checksum_text(*sum)));
    }
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    verified.files += 1;
    verified.bytes += error ? 0 : static_cast<int64_t>(bytes);
  }
  if (verified.files == 0 && problems.empty()) {
    problems.push_back(absl::StrCat(list, ": names no file"));
  }
  return problems.empty() ? absl::StatusOr<VerifiedFolder>(verified)
                          : absl::DataLossError(absl::StrJoin(problems, "\n"));
}

} // namespace distill::models
