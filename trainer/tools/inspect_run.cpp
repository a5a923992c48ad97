#include "trainer/tools/inspect_run.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/field.h"
#include "trainer/config/reader.h"
#include "trainer/config/run_length.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/run_folder/folder_lock.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The last step's and the last evaluation's objects of metrics.jsonl; null where there is none.
struct LastMetrics {
  Json step;
  Json eval;
};

absl::StatusOr<LastMetrics> last_metrics(const fs::path& file) {
  LastMetrics last;
  RETURN_IF_ERROR(metrics::for_each_record(file.string(), [&](const std::string&, const Json& record) {
    if (record.contains(metrics::kEvalKey)) {
      last.eval = record;
    } else if (metrics::is_step_record(record)) {
      last.step = record;
    }
  }));
  return last;
}

std::string metrics_text(const std::string& title, const Json& values) {
  std::string text = title + "\n";
  for (const auto& [name, value] : values.items()) {
    if (value.is_number_float()) {
      absl::StrAppendFormat(&text, "  %-18s %.6g%s\n", name, value.get<double>(), metrics::quality_text(values, name));
    }
  }
  return text;
}

std::string config_text(const config::Config& config) {
  std::string text;
  for (const char* key :
       {"student.path", "teacher.path", "data.train", "loss.divergence", "loss.hard_weight", "loss.soft_weight",
        "train.global_batch_size", "data.seq_len", "optimizer.lr"}) {
    absl::StrAppendFormat(&text, "%-24s %s\n", key, config::to_yaml(*config::find_field(key), config));
  }
  return text;
}

std::string checkpoints_text(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    const bool complete = fs::exists(it->path() / checkpoint::kMarkerFile, ignored);
    const bool used = name.find('.') == std::string::npos; // step-N.damaged and the like
    names.push_back(absl::StrCat(name, complete ? (used ? "" : " (not used)") : " (incomplete)"));
  }
  // The name step-9 comes before step-10.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::make_pair(a.size(), a) < std::make_pair(b.size(), b);
  });
  return absl::StrFormat("%-24s %s\n", "checkpoints", names.empty() ? "none" : absl::StrJoin(names, ", "));
}

// Returns a member as text, whatever its type; "?" if there is none.
std::string member_text(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) {
    return "?";
  }
  const Json& value = object[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

} // namespace

absl::StatusOr<std::string> inspect_run(const std::string& folder) {
  const fs::path root = folder;
  const config::ReadResult read = config::read_file((root / "config.yaml").string(), {});
  if (!read.problems.empty()) {
    return absl::InvalidArgumentError(config::report(read.problems));
  }
  ASSIGN_OR_RETURN(const LastMetrics last, last_metrics(root / "metrics.jsonl"));
  const std::string steps_done = last.step.is_object() ? member_text(last.step, "step") : "0";
  std::error_code error;
  std::string text = absl::StrFormat("%-24s %s\n", "run folder", folder);
  if (const auto holder = FolderLock::holder(folder)) {
    absl::StrAppendFormat(&text, "%-24s %s\n", "in use by", *holder);
  }
  absl::StrAppend(&text, config_text(read.config));
  const std::optional<int64_t> steps = config::known_steps(read.config);
  const std::string length =
      steps ? absl::StrCat(*steps) : config::to_yaml(*config::find_field("train.epochs"), read.config) + " epochs";
  absl::StrAppendFormat(&text, "%-24s %s of %s\n", "steps done", steps_done, length);
  absl::StrAppend(&text, checkpoints_text(root / "checkpoints"));
  absl::StrAppendFormat(
      &text, "%-24s %s\n", "trained model",
      fs::exists(root / "model" / "config.json", error) ? (root / "model").string() : "not written yet");
  if (last.step.is_object()) {
    absl::StrAppend(&text, metrics_text("training after step " + member_text(last.step, "step"), last.step));
  }
  if (last.eval.is_object()) {
    absl::StrAppend(&text, metrics_text("evaluation after step " + member_text(last.eval, "step"), last.eval["eval"]));
  }
  return text;
}

} // namespace distill::trainer
