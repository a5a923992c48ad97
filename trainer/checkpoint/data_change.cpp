#include "trainer/checkpoint/data_change.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "trainer/config/reader.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string counts(const DataSetSize& set) {
  return absl::StrFormat("%d documents, %d tokens", set.documents, set.tokens);
}

std::string difference(int64_t then, int64_t now, const char* what) {
  return absl::StrCat(std::abs(now - then), " ", what, now < then ? " fewer" : " more");
}

std::string set_line(const DataSetSize& then, const DataSetSize& now) {
  if (then.documents == now.documents && then.tokens == now.tokens) {
    return absl::StrCat("the same ", counts(now), ", with other content or in another order");
  }
  return absl::StrFormat(
      "%s and %s than when the run began: %s then, %s now", difference(then.documents, now.documents, "documents"),
      difference(then.tokens, now.tokens, "tokens"), counts(then), counts(now));
}

using Sets = std::vector<DataSetSize>;

Sets::const_iterator find(const Sets& sets, const std::string& path) {
  return std::find_if(sets.begin(), sets.end(), [&](const DataSetSize& set) { return set.path == path; });
}

// A line for each data set that has changed. If all of them are equal, their order or weights have changed.
std::vector<std::string> set_lines(const Sets& then, const Sets& now) {
  std::vector<std::string> lines;
  for (const DataSetSize& set : now) {
    if (const auto before = find(then, set.path); before != then.end()) {
      if (*before != set || then.size() == 1) {
        lines.push_back(absl::StrCat(set.path, ": ", set_line(*before, set)));
      }
    } else {
      lines.push_back(absl::StrCat(
          set.path, ": ", counts(set), " now; ",
          then.empty() ? "the checkpoint does not say how many it was written with" : "not a data set of the run"));
    }
  }
  for (const DataSetSize& set : then) {
    if (find(now, set.path) == now.end()) {
      lines.push_back(absl::StrCat(set.path, ": ", counts(set), " then; no longer a data set of the run"));
    }
  }
  if (lines.empty()) {
    lines.push_back("the same data sets and counts, with other content, weights or in another order");
  }
  return lines;
}

bool same_paths(const Sets& then, const Sets& now) {
  return std::equal(
      then.begin(), then.end(), now.begin(), now.end(), [](const auto& a, const auto& b) { return a.path == b.path; });
}

} // namespace

std::string data_change(const std::string& folder, const std::string& config, const Sets& then, const Sets& now) {
  const fs::path checkpoint = fs::path(folder).lexically_normal();
  const std::string run = checkpoint.parent_path().parent_path().string();
  const std::string model = absl::StrCat(run, "-", checkpoint.filename().string());
  std::vector<std::string> keys{absl::StrCat("student.path=", model), absl::StrCat("run.dir=", run, "-continued")};
  if (config::read(config, "config", {}).config.student.init == config::ModelInit::kRandom) {
    keys.emplace_back("student.init=pretrained");
  }
  if (!then.empty() && !same_paths(then, now)) {
    keys.push_back(absl::StrCat(
        "\"data.train=[",
        absl::StrJoin(now, ", ", [](std::string* out, const DataSetSize& set) { absl::StrAppend(out, set.path); }),
        "]\""));
  }
  return absl::StrCat(
      "\n  data.train is not what it was when the run began:\n    ", absl::StrJoin(set_lines(then, now), "\n    "),
      "\n  a run reads the same data to its end, since its position counts what it has read; to train these weights on "
      "the data as they are now, begin a new run, whose optimizer and schedule begin anew, too:\n    distill export "
      "--checkpoint ",
      folder, " --out ", model, "\n    distill --config ", run, "/config.yaml --set ", absl::StrJoin(keys, " "),
      "\n  to continue this run, name the data that it began with");
}

} // namespace distill::checkpoint
