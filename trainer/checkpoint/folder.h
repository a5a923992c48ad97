#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/index.h"

// The folders of a run's checkpoints: <run folder>/checkpoints/step-N. One is complete once it holds the marker
// COMPLETE, which is written last and holds the index's checksum. step-N.partial is being written; step-N.damaged was
// found damaged, step-N.superseded lies beyond the step from which the run was continued: neither is used.
namespace distill::checkpoint {

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kMarkerFile = "COMPLETE";

std::filesystem::path checkpoint_folder(const std::string& run_dir, int64_t step);
std::filesystem::path partial_folder(const std::string& run_dir, int64_t step); // while it is being written
std::string rank_file(int64_t shard_rank);

// Complete checkpoints of a run folder by step, ascending. Looks at names and markers alone.
std::map<int64_t, std::filesystem::path> complete_checkpoints(const std::string& run_dir);

// The newest complete checkpoint of a run folder; nullopt: there is none.
std::optional<std::string> newest_complete(const std::string& run_dir);

// Makes an empty "<step-N>.partial" for the ranks to write to. The run folder must exist.
absl::Status make_partial(const std::string& run_dir, int64_t step);

// After every rank has written and synced its file: writes the index, syncs, renames and writes the marker.
absl::Status publish(const std::string& run_dir, const Index& index);

// Reads and checks the index of a complete checkpoint. DataLoss: incomplete or damaged, or of another step than its
// name says. FailedPrecondition: of a format that this program does not read.
absl::StatusOr<Index> read_index(const std::string& folder);

// Keeps `saved_step` and the newest complete ones before it, `keep` in all, and removes older ones and unfinished
// folders. Never removes the last complete one.
void remove_old(const std::string& run_dir, int64_t saved_step, int64_t keep);

// Renames a checkpoint, so that it is not used any more, and returns its new path: "<folder>.damaged".
std::string set_aside(const std::string& folder, const std::string& suffix);

// Sets every checkpoint beyond `step` aside as superseded; returns the new paths. An error: one of them is still there,
// and would be resumed from.
absl::StatusOr<std::vector<std::string>> set_aside_after(const std::string& run_dir, int64_t step);

} // namespace distill::checkpoint
