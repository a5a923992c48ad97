#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/index.h"

// The folders of a run's checkpoints: <run folder>/checkpoints/step-N. A checkpoint is complete once its folder has the
// marker file COMPLETE, which is written last and contains the checksum of the index. step-N.partial is being written.
// step-N.damaged was found to be damaged, and step-N.superseded is later than the step from which the run was
// continued; these two are never read.
namespace distill::checkpoint {

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kMarkerFile = "COMPLETE";

std::filesystem::path checkpoint_folder(const std::string& run_dir, int64_t step);
std::filesystem::path partial_folder(const std::string& run_dir, int64_t step); // while it is being written
std::string rank_file(int64_t shard_rank);

// The complete checkpoints of a run folder by step, ascending. Looks only at names and at whether markers exist.
std::map<int64_t, std::filesystem::path> complete_checkpoints(const std::string& run_dir);

// The newest complete checkpoint of a run folder; nullopt: there is none.
std::optional<std::string> newest_complete(const std::string& run_dir);

// Creates an empty folder "step-N.partial" for the ranks to write to. The run folder must exist.
absl::Status make_partial(const std::string& run_dir, int64_t step);

// Completes a checkpoint after all ranks have written and synced their files: writes the index, syncs and renames the
// folder, then writes the marker.
absl::Status publish(const std::string& run_dir, const Index& index);

// Reads and checks the index of a complete checkpoint. DataLoss: the checkpoint is incomplete or damaged, or belongs to
// another step than that of its name. FailedPrecondition: this program does not read its format version.
absl::StatusOr<Index> read_index(const std::string& folder);

// Keeps the checkpoint of `saved_step` and the newest complete ones before it, `keep` in all. Removes older checkpoints
// and unfinished folders up to `saved_step`. Always keeps at least one complete checkpoint.
void remove_old(const std::string& run_dir, int64_t saved_step, int64_t keep);

// Renames a checkpoint to "<folder>.<suffix>", so that it is not read any more, and returns its new path; on failure,
// the old path.
std::string set_aside(const std::string& folder, const std::string& suffix);

// Renames every checkpoint after `step` to step-N.superseded and returns the new paths. It is an error if a rename
// fails, since a later run would resume from that checkpoint.
absl::StatusOr<std::vector<std::string>> set_aside_after(const std::string& run_dir, int64_t step);

} // namespace distill::checkpoint
