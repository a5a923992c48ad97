#include "trainer/setup/disk_space.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <filesystem>

#include "trainer/config/dtypes.h"
#include "trainer/hf/other_parts.h"
#include "trainer/models/layout.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

std::string gigabytes(int64_t bytes) {
  return absl::StrFormat("%.3g GB", 1e-9 * static_cast<double>(bytes));
}

// step-N: a checkpoint with its final name. Those that were set aside have a suffix.
bool is_checkpoint(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) && name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

std::string need_text(const DiskNeed& need) {
  const std::string checkpoints =
      absl::StrCat(need.checkpoints, need.checkpoints == 1 ? " checkpoint of " : " checkpoints of ") +
      gigabytes(need.checkpoint_bytes);
  return need.model_bytes > 0 ? absl::StrCat(checkpoints, " and the model of ", gigabytes(need.model_bytes))
                              : checkpoints;
}

} // namespace

DiskNeed disk_need(const config::Config& config, const models::ModelConfig& student, int64_t steps) {
  DiskNeed need;
  for (const models::UnitLayout& layout : models::trained_layouts(student)) {
    need.checkpoint_bytes += layout.numel * config::state_bytes(config.optimizer);
  }
  const int64_t every = config.checkpoint.every;
  const int64_t periodic = every > 0 ? steps / every : 0;
  const bool last = config.checkpoint.at_end && (every == 0 || steps % every != 0);
  need.checkpoints = std::min(periodic + (last ? 1 : 0), config.checkpoint.keep + 1);
  if (config.checkpoint.at_end) {
    const at::ScalarType dtype = config::scalar_type(config.checkpoint.model_dtype, student);
    const bool alone = student.adapter && !config.lora.merge; // the adapters
    const bool in_fp32 = alone && config.checkpoint.model_dtype == config::StoredDtype::kAuto;
    need.model_bytes =
        models::parameter_count(alone ? models::trained_layouts(student) : models::unit_layouts(student)) *
        (in_fp32 ? 4 : static_cast<int64_t>(c10::elementSize(dtype)));
    // A folder that cannot be read is reported where its weights are opened.
    if (const auto others = hf::open_other_parts(config.student.path, student); !alone && others.ok() && *others) {
      need.model_bytes += (*others)->bytes();
    }
  }
  return need;
}

int64_t bytes_below(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const auto size = it->is_regular_file(ignored) ? it->file_size(ignored) : 0;
    bytes += ignored ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

absl::Status check_cache_space(const std::string& folder, int64_t needed) {
  const DiskSpace space = disk_space(folder);
  if (space.available_bytes < 0 || space.available_bytes >= needed) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "teacher.cache: expected %s of disk for the %s of the cache that are not there yet, found %s in %s; free some "
      "space, name another folder, or store less (cache.kind, cache.dtype)",
      gigabytes(needed), gigabytes(needed), gigabytes(space.available_bytes), space.place));
}

DiskSpace disk_space(const std::string& run_dir) {
  std::error_code error;
  fs::path place = fs::absolute(run_dir, error).lexically_normal();
  while (!fs::exists(place, error) && place.has_relative_path()) {
    place = place.parent_path();
  }
  DiskSpace space;
  space.place = place.string();
  const fs::space_info info = fs::space(place, error);
  space.available_bytes = error ? -1 : static_cast<int64_t>(std::min<uintmax_t>(info.available, INT64_MAX));
  for (fs::directory_iterator it(fs::path(run_dir) / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    space.reused_bytes += is_checkpoint(it->path().filename().string()) ? bytes_below(it->path().string()) : 0;
  }
  return space;
}

std::string disk_line(const DiskNeed& need, const DiskSpace& space) {
  if (need.bytes() == 0) {
    return "disk: the run writes no checkpoint and no model";
  }
  std::string line = absl::StrCat("disk: ", gigabytes(need.bytes()), " for ", need_text(need), "; ");
  if (space.available_bytes < 0) {
    return absl::StrCat(line, "the free space of ", space.place, " is not known");
  }
  absl::StrAppend(&line, gigabytes(space.available_bytes), " available in ", space.place);
  return space.reused_bytes > 0
      ? absl::StrCat(line, ", and ", gigabytes(space.reused_bytes), " of checkpoints that are replaced")
      : line;
}

std::string disk_warning(const DiskNeed& need, const DiskSpace& space) {
  const int64_t found = space.available_bytes + space.reused_bytes;
  if (space.available_bytes < 0 || found >= need.bytes()) {
    return "";
  }
  const int64_t first = need.checkpoints > 0 ? need.checkpoint_bytes : need.model_bytes;
  return absl::StrCat(
      "run.dir: expected ", gigabytes(need.bytes()), " of disk for ", need_text(need),
      need.checkpoints > 1 ? " (checkpoint.keep, and one that is being written)" : "", ", found ", gigabytes(found),
      " in ", space.place, "; ",
      found < first ? absl::StrCat("not even the first ", need.checkpoints > 0 ? "checkpoint" : "model", " fits")
                    : "a later checkpoint, or the model, will not fit",
      ": free some space, or name another run.dir", need.checkpoints > 1 ? ", or lower checkpoint.keep" : "");
}

} // namespace distill::trainer
