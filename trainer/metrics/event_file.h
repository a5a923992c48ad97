#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// TensorBoard's event files: records, each an Event of tensorflow/core/util/event.proto, in the framing of TFRecord
// files (a length, its checksum, the bytes, their checksum; the checksums are masked CRC-32C).
namespace distill::metrics {

struct Scalar {
  std::string tag;
  float value = 0;
};

// The Events that are written, as bytes. wall_time: seconds since 1970.
std::string version_event(double wall_time); // the first of a file
// The begin of a process's records: a viewer that follows the run drops what it has seen of `step` and later steps.
std::string start_event(double wall_time, int64_t step);
std::string scalars_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
std::string text_event(double wall_time, int64_t step, const std::string& tag, std::string_view text);

// An Event in its frame.
std::string event_record(std::string_view event);

// The step of an Event that holds a text; nullopt: it holds none, or is not well-formed.
std::optional<int64_t> step_of_text(std::string_view event);

// Calls `visit` for the Events of a file, in order, up to the first record that is torn or damaged. The content is not
// trusted. Internal: the file cannot be read.
absl::Status for_each_event(const std::string& path, const std::function<void(std::string_view event)>& visit);

} // namespace distill::metrics
