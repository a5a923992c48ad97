#include "trainer/onpolicy/round_folder.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/durable_file.h"
#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::onpolicy {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "distill-round";
constexpr int kVersion = 1;
constexpr int kMaxDepth = 8;
constexpr int64_t kMaxBytes = 16 << 20;

std::string text_of(const Json& request, const Json& result) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"request", request}};
  if (!result.is_null()) {
    json["result"] = result;
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The first name of this kind that is free: NAME.replaced, NAME.replaced-2, ...
fs::path free_name(const std::string& path) {
  fs::path name = path + ".replaced";
  std::error_code error;
  for (int i = 2; fs::exists(name, error); ++i) {
    name = absl::StrCat(path, ".replaced-", i);
  }
  return name;
}

} // namespace

RoundFolder::RoundFolder(const std::string& run_dir, int64_t number)
    : path_(absl::StrFormat("%s/%s/round-%05d", run_dir, kRoundsFolder, number)) {}

std::string RoundFolder::absolute_file(const char* name) const {
  std::error_code ignored;
  return fs::absolute(file(name), ignored).lexically_normal().string();
}

absl::StatusOr<Json> RoundFolder::read() const {
  const std::string name = file(kRoundFile);
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(name, kMaxBytes));
  const auto json = base::parse_json(text, name, kMaxDepth);
  if (!json.ok() || !json->is_object() || json->value("format", Json()) != kFormat || !json->contains("request")) {
    return absl::DataLossError(absl::StrCat(
        name, ": expected the description of a round", json.ok() ? "" : ": " + std::string(json.status().message())));
  }
  if (json->value("version", Json()) != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": expected format version ", kVersion, ", found ", json->value("version", Json()).dump()));
  }
  return *json;
}

absl::StatusOr<RoundFolder::Contents> RoundFolder::read_complete() const {
  ASSIGN_OR_RETURN(const Json json, read());
  const auto result = json.find("result");
  if (result == json.end() || !result->is_object()) {
    return absl::NotFoundError(absl::StrCat(file(kRoundFile), ": the round is not complete"));
  }
  return Contents{json["request"], *result};
}

absl::StatusOr<Json> RoundFolder::read_request() const {
  ASSIGN_OR_RETURN(const Json json, read());
  return json["request"];
}

absl::Status RoundFolder::begin(const Json& request, std::string& set_aside) const {
  std::error_code error;
  if (fs::exists(path_, error)) {
    const auto there = read();
    if (there.ok() && (*there)["request"] == request) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(set_aside, this->set_aside());
  }
  fs::create_directories(path_, error);
  if (error) {
    return absl::InternalError(absl::StrCat(path_, ": cannot create: ", error.message()));
  }
  RETURN_IF_ERROR(base::replace_file(file(kRoundFile), text_of(request, Json())));
  return base::sync_folder(fs::path(path_).parent_path().string());
}

absl::StatusOr<std::string> RoundFolder::set_aside() const {
  const fs::path aside = free_name(path_);
  std::error_code error;
  fs::rename(path_, aside, error);
  if (error) {
    return absl::InternalError(absl::StrCat(path_, ": cannot rename: ", error.message()));
  }
  return aside.string();
}

absl::Status RoundFolder::complete(const Json& request, const Json& result) const {
  return base::replace_file(file(kRoundFile), text_of(request, result));
}

absl::Status RoundFolder::add_judgement(const Json& judged, const Json& more) const {
  ASSIGN_OR_RETURN(Contents contents, read_complete());
  const std::string text = judged.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  RETURN_IF_ERROR(base::replace_file(file(kJudgedFile), text));
  contents.result.update(more, /*merge_objects=*/true);
  contents.result[kJudgedKey][kJudgedChecksumKey] = base::checksum_text(base::checksum(text.data(), text.size()));
  return complete(contents.request, contents.result);
}

absl::StatusOr<Json> RoundFolder::read_judged() const {
  ASSIGN_OR_RETURN(const Contents contents, read_complete());
  const auto means = contents.result.find(kJudgedKey);
  if (means == contents.result.end() || !means->is_object()) {
    return absl::NotFoundError(absl::StrCat(path_, ": the round was not judged"));
  }
  const std::string name = file(kJudgedFile);
  const auto text = base::read_text_file(name, kMaxBytes);
  if (!text.ok()) {
    return absl::DataLossError(std::string(text.status().message()));
  }
  const std::string found = base::checksum_text(base::checksum(text->data(), text->size()));
  if (means->value(kJudgedChecksumKey, Json()) != found) {
    return absl::DataLossError(absl::StrCat(
        name, ": expected the checksum ", means->value(kJudgedChecksumKey, Json()).dump(), " of ", kRoundFile,
        ", found ", found));
  }
  return base::parse_json(*text, name, kMaxDepth);
}

std::vector<int64_t> complete_rounds(const std::string& run_dir) {
  constexpr absl::string_view kPrefix = "round-";
  std::vector<int64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator it(fs::path(run_dir) / kRoundsFolder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t number = 0;
    if (absl::StartsWith(name, kPrefix) && absl::SimpleAtoi(name.substr(kPrefix.size()), &number) &&
        RoundFolder(run_dir, number).read_complete().ok()) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<std::string> remove_old_rounds(const std::string& run_dir, int64_t newest, int64_t keep, int64_t step) {
  std::vector<std::string> removed;
  for (int64_t number = newest - keep; number >= 0; --number) {
    const RoundFolder folder(run_dir, number);
    std::error_code error;
    if (!fs::exists(folder.path(), error)) {
      break; // the earlier ones were removed before
    }
    const auto contents = folder.read_complete();
    const int64_t end = contents.ok()
        ? contents->request.value("first_step", int64_t{0}) + contents->request.value("steps", int64_t{0})
        : 0;
    if (end > step) {
      continue;
    }
    fs::remove_all(folder.path(), error);
    if (!error) {
      removed.push_back(folder.path());
    }
  }
  return removed;
}

} // namespace distill::onpolicy
