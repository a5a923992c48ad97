#include "trainer/metrics/tensorboard.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "data/base/status_macros.h"
#include "trainer/metrics/wall_clock.h"

namespace distill::metrics {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "events.out.tfevents.";
// The new file until it is complete; no viewer takes it for an event file.
constexpr const char* kUnfinished = "unfinished";
constexpr size_t kWriteBytes = 1 << 20;

double seconds_now() {
  return static_cast<double>(wall_clock_ms()) / 1000;
}

// The seconds in the name of one of our event files; 0: it has none.
int64_t seconds_of(const std::string& name) {
  int64_t seconds = 0;
  const std::string_view digits = std::string_view(name).substr(std::string_view(kPrefix).size());
  std::from_chars(digits.data(), digits.data() + digits.size(), seconds); // unchanged where there are no digits
  return std::max<int64_t>(0, seconds);
}

// Event files, oldest first.
absl::StatusOr<std::vector<fs::path>> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(kPrefix) && it->is_regular_file(ignored)) {
      files.push_back(it->path());
    }
  }
  if (error) {
    return absl::InternalError(absl::StrCat(folder.string(), ": cannot be read: ", error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// A name that comes after the others: viewers read the files of a folder in the order of their names.
std::string next_name(const std::vector<fs::path>& earlier) {
  auto seconds = wall_clock_ms() / 1000;
  for (const fs::path& file : earlier) {
    const int64_t taken = seconds_of(file.filename().string());
    seconds = std::max(seconds, taken < std::numeric_limits<int64_t>::max() ? taken + 1 : taken);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return absl::StrFormat("%s%010d.%s.%d", kPrefix, seconds, host.data(), ::getpid());
}

// The ending of a tag: a number that is not exact never shares a chart with one that is.
const char* tag_ending(losses::MetricQuality quality) {
  switch (quality) {
    case losses::MetricQuality::kLowerBound:
      return "_lower_bound";
    case losses::MetricQuality::kEstimate:
      return "_estimate";
    default:
      return "";
  }
}

void add_scalars(const std::string& prefix, const Json& object, std::vector<Scalar>& out) {
  for (const auto& [name, value] : object.items()) {
    const std::string tag = absl::StrCat(prefix, name, tag_ending(recorded_quality(object, name)));
    if (value.is_object()) {
      add_scalars(absl::StrCat(prefix, name, "/"), value, out);
    } else if (value.is_number()) {
      out.push_back({tag, value.get<float>()});
    } else if (value.is_boolean()) {
      out.push_back({tag, value.get<bool>() ? 1.0F : 0.0F});
    }
  }
}

std::string scalars_record(const Json& record) {
  const auto time = record.find(kTimeKey);
  // A line of an older version has no time.
  const double wall_time = time != record.end() && time->is_number() ? time->get<double>() / 1000 : seconds_now();
  return event_record(scalars_event(wall_time, record_step(record).value_or(0), scalars_of(record)));
}

// Writes in large pieces.
class Buffer {
 public:
  explicit Buffer(base::DurableFile& file) : file_(file) {}

  void add(std::string_view record) {
    bytes_.append(record);
    if (bytes_.size() >= kWriteBytes) {
      flush();
    }
  }
  absl::Status finish() {
    flush();
    return status_;
  }

 private:
  void flush() {
    if (status_.ok()) {
      status_ = file_.write(bytes_);
    }
    bytes_.clear();
  }

  base::DurableFile& file_;
  std::string bytes_;
  absl::Status status_;
};

// The texts that are kept, as records. A job that ended between its new file and the emptying of the old one has left
// them twice.
absl::Status add_kept_texts(const std::vector<fs::path>& files, const KeptSteps& kept, Buffer& out) {
  std::unordered_set<std::string> seen;
  for (const fs::path& file : files) {
    RETURN_IF_ERROR(for_each_event(file.string(), [&](std::string_view event) {
      const auto step = step_of_text(event);
      if (step && *step <= kept.last_evaluation && seen.emplace(event).second) {
        out.add(event_record(event));
      }
    }));
  }
  return absl::OkStatus();
}

absl::Status write_kept(
    const std::string& path, const std::vector<fs::path>& earlier, const std::string& metrics_file,
    const KeptSteps& kept) {
  ASSIGN_OR_RETURN(base::DurableFile file, base::DurableFile::create(path));
  Buffer out(file);
  const double now = seconds_now();
  out.add(event_record(version_event(now)));
  out.add(event_record(start_event(now, 0))); // all that a viewer has seen of earlier files comes again
  RETURN_IF_ERROR(
      for_each_record(metrics_file, [&](const std::string&, const Json& record) { out.add(scalars_record(record)); }));
  RETURN_IF_ERROR(add_kept_texts(earlier, kept, out));
  RETURN_IF_ERROR(out.finish());
  return file.close();
}

// Removes empty files, and empties the others: TensorBoard's reader never gets past a file that has gone while it was
// reading it, but goes on to the next one at the end of an empty one.
absl::Status retire(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    if (!error && size == 0) {
      fs::remove(file, error);
    } else if (!error) {
      fs::resize_file(file, 0, error);
    }
    if (error) {
      return absl::InternalError(absl::StrCat(file.string(), ": cannot be emptied: ", error.message()));
    }
  }
  return absl::OkStatus();
}

} // namespace

std::vector<Scalar> scalars_of(const Json& record) {
  std::vector<Scalar> scalars;
  for (const char* kind : {kEvalKey, kRoundKey}) {
    if (const auto values = record.find(kind); values != record.end()) {
      if (values->is_object()) {
        add_scalars(absl::StrCat(kind, "/"), *values, scalars);
      }
      return scalars;
    }
  }
  Json values = record;
  values.erase(kStepKey);
  values.erase(kTimeKey);
  add_scalars("train/", values, scalars);
  return scalars;
}

absl::StatusOr<Tensorboard> Tensorboard::open(
    const std::string& folder, const std::string& metrics_file, const KeptSteps& kept) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::InternalError(absl::StrCat(folder, ": cannot create: ", error.message()));
  }
  ASSIGN_OR_RETURN(const std::vector<fs::path> earlier, event_files(folder));
  const fs::path unfinished = fs::path(folder) / kUnfinished;
  const fs::path path = fs::path(folder) / next_name(earlier);
  RETURN_IF_ERROR(write_kept(unfinished.string(), earlier, metrics_file, kept));
  fs::rename(unfinished, path, error);
  if (error) {
    return absl::InternalError(absl::StrCat(path.string(), ": cannot be created: ", error.message()));
  }
  RETURN_IF_ERROR(base::sync_folder(folder));
  RETURN_IF_ERROR(retire(earlier));
  ASSIGN_OR_RETURN(base::DurableFile file, base::DurableFile::append_to(path.string()));
  return Tensorboard(std::move(file));
}

absl::Status Tensorboard::append(const Json& record) {
  return file_.write(scalars_record(record));
}

absl::Status Tensorboard::text(const std::string& tag, int64_t step, std::string_view text) {
  return file_.write(event_record(text_event(seconds_now(), step, tag, text)));
}

} // namespace distill::metrics
