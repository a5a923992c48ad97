#include "trainer/tools/verify.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <filesystem>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/shard.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/metrics/status_line.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/onpolicy/judgement.h"
#include "trainer/onpolicy/round_folder.h"
#include "trainer/setup/disk_space.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Report = std::function<void(const std::string& line)>;

struct Output {
  Report report;
  base::ReadProgress progress;
};

bool holds(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

absl::Status verify_checkpoint(const std::string& folder, const Output& out) {
  ASSIGN_OR_RETURN(const checkpoint::VerifiedCheckpoint verified, checkpoint::verify_checkpoint(folder, out.progress));
  out.report(absl::StrFormat(
      "%s: checkpoint of step %d, %d files, %d bytes: every checksum fits", folder, verified.step, verified.files,
      verified.bytes));
  return absl::OkStatus();
}

absl::Status verify_model(const std::string& folder, const Output& out) {
  ASSIGN_OR_RETURN(const hf::VerifiedFolder verified, hf::verify_model_folder(folder, out.progress));
  out.report(absl::StrFormat(
      "%s: model folder, %d files, %d bytes: every checksum fits", folder, verified.files, verified.bytes));
  return absl::OkStatus();
}

absl::Status verify_cache(const std::string& folder, const Output& out) {
  ASSIGN_OR_RETURN(const teacher_cache::VerifiedCache verified, teacher_cache::verify_cache(folder, out.progress));
  out.report(absl::StrFormat(
      "%s: teacher's cache, %d parts, %d rows, %d bytes: every checksum fits", folder, verified.parts, verified.rows,
      verified.bytes));
  return absl::OkStatus();
}

// The shards of a round's folder: that they have the documents which round.json counts.
absl::StatusOr<std::vector<data::Shard>> verify_shards(
    const std::string& folder, const nlohmann::ordered_json& counts, const char* which) {
  ASSIGN_OR_RETURN(std::vector<data::Shard> shards, onpolicy::open_round_shards(folder));
  int64_t documents = 0;
  for (const data::Shard& shard : shards) {
    RETURN_IF_ERROR(shard.verify());
    documents += shard.documents();
  }
  const int64_t completions = counts.value("completions", int64_t{0});
  if (documents != completions) {
    return absl::DataLossError(absl::StrFormat(
        "%s: expected the %d %scompletions of %s, found %d documents", shards.front().path(), completions, which,
        onpolicy::kRoundFile, documents));
  }
  return shards;
}

// A complete round of an on-policy run: its token shards, those of its held-out completions, if its result counts some,
// and what student and teacher say of them.
absl::Status verify_round(const onpolicy::RoundFolder& folder, const Output& out) {
  ASSIGN_OR_RETURN(const onpolicy::RoundFolder::Contents contents, folder.read_complete());
  ASSIGN_OR_RETURN(const std::vector<data::Shard> shards, verify_shards(folder.path(), contents.result, ""));
  const auto held_out = contents.result.find(onpolicy::kHeldOutKey);
  if (held_out != contents.result.end() && held_out->is_object()) {
    RETURN_IF_ERROR(verify_shards(folder.file(onpolicy::kHeldOutFolder), *held_out, "held-out ").status());
  }
  std::vector<const data::Shard*> all;
  all.reserve(shards.size());
  for (const data::Shard& shard : shards) {
    all.push_back(&shard);
  }
  const onpolicy::RoundShards documents(all);
  const auto judged = folder.read_judged();
  if (!absl::IsNotFound(judged.status())) { // else the run ended before it looked at the round
    RETURN_IF_ERROR(judged.status());
    RETURN_IF_ERROR(onpolicy::check_judged(*judged, documents, folder.file(onpolicy::kJudgedFile)));
  }
  out.report(absl::StrFormat(
      "%s: on-policy round, %d completions, %d tokens: every checksum fits", folder.path(), documents.documents(),
      documents.tokens()));
  return absl::OkStatus();
}

// Of the run's rounds, those that are being written are left out.
std::vector<absl::Status> verify_rounds(const std::string& run_dir, const Output& out) {
  std::vector<absl::Status> results;
  for (const int64_t number : onpolicy::complete_rounds(run_dir)) {
    results.push_back(verify_round(onpolicy::RoundFolder(run_dir, number), out));
  }
  return results;
}

absl::Status verify_run(const std::string& folder, const Output& out) {
  std::vector<absl::Status> results;
  for (const auto& [step, path] : checkpoint::complete_checkpoints(folder)) {
    results.push_back(verify_checkpoint(path.string(), out));
  }
  for (absl::Status& result : verify_rounds(folder, out)) {
    results.push_back(std::move(result));
  }
  if (const fs::path model = fs::path(folder) / "model"; holds(model, "config.json")) {
    results.push_back(verify_model(model.string(), out));
  }
  if (results.empty()) {
    return absl::NotFoundError(folder + ": a run folder without a complete checkpoint or a model");
  }
  base::ProblemList problems;
  for (const absl::Status& result : results) {
    problems.add(result);
  }
  return problems.status(absl::StatusCode::kDataLoss);
}

} // namespace

absl::Status verify(const std::string& path, const Report& report) {
  metrics::TaskProgress progress("verifying", bytes_below(path), "bytes", config::ProgressStyle::kAuto);
  const Output out{
      [&](const std::string& line) { metrics::print_above_status_line([&] { report(line); }); },
      [&](int64_t bytes) { progress.add(bytes); }};
  if (holds(path, checkpoint::kMarkerFile) || holds(path, checkpoint::kIndexFile)) {
    return verify_checkpoint(path, out);
  }
  if (holds(path, teacher_cache::kManifestFile)) {
    return verify_cache(path, out);
  }
  if (holds(path, "config.json") || holds(path, hf::kChecksumsFile)) {
    return verify_model(path, out);
  }
  if (holds(path, "config.yaml") || holds(path, "checkpoints")) {
    return verify_run(path, out);
  }
  return absl::NotFoundError(absl::StrCat(
      path, ": expected a checkpoint (", checkpoint::kMarkerFile,
      "), a model folder (config.json), a teacher's cache (", teacher_cache::kManifestFile,
      ") or a run folder (config.yaml), found none of these"));
}

} // namespace distill::trainer
