#include "trainer/hf/model_checksums.h"

#include <absl/strings/escaping.h>

#include "data/base/checksum.h"
#include "data/base/durable_file.h"
#include "data/base/json.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = int64_t{16} << 20;
constexpr std::string_view kPrefix = "XXH3 (", kMiddle = ") = ";
constexpr size_t kDigits = 16;
constexpr size_t kMaxProblems = 20; // listed in an error

// Tells whether a name, of the form a or a/b, stays in the folder.
bool is_inside(std::string_view name) {
  if (name.find('\0') != std::string_view::npos) {
    return false;
  }
  for (;;) {
    const size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    if (part.empty() || part == "." || part == "..") {
      return false;
    }
    if (end == name.size()) {
      return true;
    }
    name.remove_prefix(end + 1);
  }
}

// The checksum and the file name of one line; nullopt: the line is malformed, or leads out of the folder.
std::optional<std::pair<uint64_t, std::string>> parse_line(std::string_view line) {
  const size_t around = kPrefix.size() + kMiddle.size() + kDigits;
  if (line.size() <= around || !line.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string name(line.substr(kPrefix.size(), line.size() - around));
  const std::string_view rest = line.substr(kPrefix.size() + name.size());
  const auto sum = base::parse_checksum(rest.substr(kMiddle.size()));
  return sum && is_inside(name) && rest.starts_with(kMiddle) ? std::optional(std::pair(*sum, name)) : std::nullopt;
}

} // namespace

std::string checksums_text(const std::map<std::string, uint64_t>& checksums) {
  std::string text;
  for (const auto& [name, sum] : checksums) {
    absl::StrAppend(&text, "XXH3 (", name, ") = ", base::checksum_text(sum), "\n");
  }
  return text;
}

absl::Status write_checksums(const std::string& folder, std::map<std::string, uint64_t> known) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().lexically_relative(folder).generic_string();
    std::error_code ignored;
    if (!it->is_directory(ignored) && known.count(name) == 0) {
      ASSIGN_OR_RETURN(known[name], base::file_checksum(it->path().string()));
    }
  }
  if (error) {
    return absl::InternalError(absl::StrCat(folder, ": cannot list: ", error.message()));
  }
  return base::write_file((fs::path(folder) / kChecksumsFile).string(), checksums_text(known));
}

absl::StatusOr<std::map<std::string, uint64_t>> parse_checksums(std::string_view text, const std::string& source) {
  std::map<std::string, uint64_t> sums;
  base::ProblemList problems;
  for (int64_t number = 1; !text.empty() && problems.size() < kMaxProblems; ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) {
      continue;
    }
    const auto entry = parse_line(line);
    if (!entry) {
      problems.add(absl::StrCat(
          source, ":", number, ": expected XXH3 (<file>) = <16 digits>, found \"",
          absl::Utf8SafeCEscape(std::string(line.substr(0, 100))), "\""));
    } else if (!sums.emplace(entry->second, entry->first).second) {
      problems.add(absl::StrCat(
          source, ":", number, ": expected each file once, found ", absl::Utf8SafeCEscape(entry->second), " again"));
    }
  }
  if (sums.empty() && problems.empty()) {
    problems.add(absl::StrCat(source, ": names no file"));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  return sums;
}

absl::StatusOr<VerifiedFolder> verify_model_folder(const std::string& folder, const base::ReadProgress& progress) {
  const std::string list = (fs::path(folder) / kChecksumsFile).string();
  const auto text = base::read_text_file(list, kMaxBytes);
  if (!text.ok()) {
    return absl::IsNotFound(text.status()) ? absl::NotFoundError(absl::StrCat(
                                                 folder, ": holds no ", kChecksumsFile,
                                                 ", so that nothing can be compared; distill writes one into every "
                                                 "model folder"))
                                           : text.status();
  }
  const auto sums = parse_checksums(*text, list);
  if (!sums.ok()) {
    return absl::DataLossError(sums.status().message());
  }
  VerifiedFolder verified;
  base::ProblemList problems;
  for (const auto& [name, expected] : *sums) {
    const std::string file = (fs::path(folder) / name).string();
    const std::optional<uint64_t> sum = problems.take(base::file_checksum(file, progress));
    if (sum && *sum != expected) {
      problems.add(absl::StrCat(
          file, ": is damaged, or its line in ", kChecksumsFile, " is: expected checksum ",
          base::checksum_text(expected), ", found ", base::checksum_text(*sum)));
    }
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    verified.files += 1;
    verified.bytes += error ? 0 : static_cast<int64_t>(bytes);
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kDataLoss));
  return verified;
}

} // namespace distill::hf
