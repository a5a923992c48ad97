#include "trainer/checkpoint/folder.h"

#include <absl/strings/escaping.h>

#include <charconv>

#include "data/base/checksum.h"
#include "data/base/durable_file.h"
#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "checkpoints";
constexpr const char* kPartial = ".partial";
constexpr const char* kReplaced = base::kReplacedFolder; // base::publish_folder was killed between its two renames
constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;
constexpr int64_t kMaxMarkerBytes = 4096;

// N of "step-N", and the suffix after it; nullopt for any other name.
std::optional<std::pair<int64_t, std::string>> parse_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  const bool plain = result.ec == std::errc() && step >= 0 && name.starts_with(absl::StrCat("step-", step));
  return plain ? std::optional(std::pair(step, std::string(result.ptr, end))) : std::nullopt; // not step-007
}

struct Entry {
  fs::path path;
  int64_t step = 0;
  std::string suffix; // empty: the folder has its final name
};

std::vector<Entry> list_entries(const std::string& run_dir) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(fs::path(run_dir) / kFolder, error), end; !error && it != end; it.increment(error)) {
    if (auto name = parse_name(it->path().filename().string())) {
      entries.push_back({it->path(), name->first, std::move(name->second)});
    }
  }
  return entries;
}

bool has_marker(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kMarkerFile, error);
}

std::string marker_text(int64_t version, uint64_t index_sum) {
  return absl::StrCat("distill-checkpoint ", version, " index.json xxh3 ", base::checksum_text(index_sum), "\n");
}

// Whether the marker names a format version that this program reads. The rest of its text is not checked.
bool is_known_marker(const std::string& marker) {
  for (int64_t version = kOldestVersion; version <= kFormatVersion; ++version) {
    if (marker.starts_with(absl::StrCat("distill-checkpoint ", version, " "))) {
      return true;
    }
  }
  return false;
}

// Removes the marker first, so that a checkpoint that is partly removed is never complete.
void remove_checkpoint(const fs::path& folder) {
  std::error_code ignored; // a folder that cannot be removed takes disk space, but is no reason to end the run
  fs::remove(folder / kMarkerFile, ignored);
  fs::remove_all(folder, ignored);
}

} // namespace

fs::path checkpoint_folder(const std::string& run_dir, int64_t step) {
  return fs::path(run_dir) / kFolder / absl::StrCat("step-", step);
}

fs::path partial_folder(const std::string& run_dir, int64_t step) {
  return checkpoint_folder(run_dir, step).string() + kPartial;
}

std::string rank_file(int64_t shard_rank) {
  return absl::StrFormat("rank-%05d.safetensors", shard_rank);
}

std::map<int64_t, fs::path> complete_checkpoints(const std::string& run_dir) {
  std::map<int64_t, fs::path> found;
  for (const Entry& entry : list_entries(run_dir)) {
    if (entry.suffix.empty() && has_marker(entry.path)) {
      found[entry.step] = entry.path;
    }
  }
  return found;
}

std::optional<std::string> newest_complete(const std::string& run_dir) {
  const auto found = complete_checkpoints(run_dir);
  return found.empty() ? std::nullopt : std::optional(found.rbegin()->second.string());
}

absl::Status make_partial(const std::string& run_dir, int64_t step) {
  const fs::path partial = partial_folder(run_dir, step);
  std::error_code error;
  // A run folder that has vanished is an error: it is not created again.
  fs::create_directory(partial.parent_path(), error);
  if (!error) {
    fs::remove_all(partial, error);
  }
  if (!error) {
    fs::create_directory(partial, error);
  }
  if (error) {
    return absl::InternalError(absl::StrCat(partial.string(), ": cannot create: ", error.message()));
  }
  return base::sync_folder(run_dir); // its entries: the folder of checkpoints and the run's other files
}

absl::Status publish(const std::string& run_dir, const Index& index) {
  const fs::path partial = partial_folder(run_dir, index.state.step);
  const fs::path target = checkpoint_folder(run_dir, index.state.step);
  const std::string text = to_json(index);
  RETURN_IF_ERROR(base::write_file((partial / kIndexFile).string(), text));
  RETURN_IF_ERROR(base::publish_folder(partial.string(), target.string()));
  const std::string marker = marker_text(index.version, base::checksum(text.data(), text.size()));
  if (absl::Status status = base::write_file((target / kMarkerFile).string(), marker); !status.ok()) {
    remove_checkpoint(target); // the marker may be incomplete, and the disk may be full
    return status;
  }
  return base::sync_folder(target.string());
}

absl::StatusOr<Index> read_index(const std::string& folder) {
  const std::string marker_file = (fs::path(folder) / kMarkerFile).string();
  const std::string index_file = (fs::path(folder) / kIndexFile).string();
  const auto marker = base::read_text_file(marker_file, kMaxMarkerBytes);
  if (!marker.ok()) {
    return absl::DataLossError(absl::StrCat(
        std::string(marker.status().message()), "; the checkpoint is incomplete (its marker is written last)"));
  }
  const auto text = base::read_text_file(index_file, kMaxIndexBytes);
  if (!text.ok()) {
    return absl::DataLossError(text.status().message());
  }
  // If both the index and the marker have another format version, it is that. Every other mismatch of the two is
  // damage.
  auto index = parse_index(*text, index_file);
  if (absl::IsFailedPrecondition(index.status()) && !is_known_marker(*marker)) {
    return index.status();
  }
  const int64_t version = index.ok() ? index->version : kFormatVersion;
  const std::string expected = marker_text(version, base::checksum(text->data(), text->size()));
  if (*marker == expected) {
    const auto name = parse_name(fs::path(folder).lexically_normal().filename().string());
    if (index.ok() && name && name->second.empty() && name->first != index->state.step) {
      return absl::DataLossError(absl::StrCat(
          folder, ": holds the checkpoint of step ", index->state.step, ", but the folder's name says another step"));
    }
    return index;
  }
  return absl::DataLossError(absl::StrCat(
      index_file, ": its checksum is not the one in ", kMarkerFile, ": one of the two is damaged; expected ",
      absl::CEscape(expected), ", found ", absl::CEscape(marker->substr(0, 200))));
}

void remove_old(const std::string& run_dir, int64_t saved_step, int64_t keep) {
  for (const Entry& entry : list_entries(run_dir)) {
    const bool unfinished =
        entry.suffix == kPartial || entry.suffix == kReplaced || (entry.suffix.empty() && !has_marker(entry.path));
    if (unfinished && entry.step <= saved_step) {
      remove_checkpoint(entry.path);
    }
  }
  auto found = complete_checkpoints(run_dir);
  found.erase(found.upper_bound(saved_step), found.end());
  while (static_cast<int64_t>(found.size()) > std::max<int64_t>(1, keep)) {
    remove_checkpoint(found.begin()->second);
    found.erase(found.begin());
  }
}

std::string set_aside(const std::string& folder, const std::string& suffix) {
  const std::string target = absl::StrCat(folder, ".", suffix);
  std::error_code error;
  fs::remove_all(target, error);
  fs::rename(folder, target, error);
  return error ? folder : target;
}

absl::StatusOr<std::vector<std::string>> set_aside_after(const std::string& run_dir, int64_t step) {
  std::vector<std::string> moved;
  for (const auto& [other, path] : complete_checkpoints(run_dir)) {
    if (other > step) {
      moved.push_back(set_aside(path.string(), "superseded"));
      if (moved.back() == path.string()) {
        return absl::InternalError(absl::StrCat(
            path.string(), ": is later than step ", step,
            ", from which the run is to continue, and cannot be renamed; move it away by hand"));
      }
    }
  }
  if (!moved.empty()) {
    RETURN_IF_ERROR(base::sync_folder((fs::path(run_dir) / kFolder).string()));
  }
  return moved;
}

} // namespace distill::checkpoint
