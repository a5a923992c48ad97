#include "trainer/metrics/event_file.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "trainer/metrics/crc32c.h"
#include "trainer/metrics/protobuf_wire.h"

namespace distill::metrics {
namespace {

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
} // namespace event
namespace session_log {
constexpr int kStatus = 1;
constexpr uint64_t kStart = 1;
} // namespace session_log
namespace summary {
constexpr int kValue = 1;
} // namespace summary
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
} // namespace value
namespace metadata {
constexpr int kPluginData = 1;
} // namespace metadata
namespace plugin_data {
constexpr int kPluginName = 1;
} // namespace plugin_data
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kStringVal = 8;
constexpr uint64_t kString = 7; // DT_STRING
} // namespace tensor
namespace shape {
constexpr int kDim = 2;
} // namespace shape
namespace dim {
constexpr int kSize = 1;
} // namespace dim

constexpr const char* kTextPlugin = "text";
constexpr size_t kLengthBytes = 8, kChecksumBytes = 4;

std::string little_endian(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
  return out;
}

uint64_t from_little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

std::string masked_checksum(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return little_endian(static_cast<uint32_t>(((crc >> 15U) | (crc << 17U)) + 0xa282ead8U), kChecksumBytes);
}

MessageWriter event_at(double wall_time, int64_t step) {
  MessageWriter message;
  message.float64(event::kWallTime, wall_time);
  message.varint(event::kStep, static_cast<uint64_t>(step));
  return message;
}

// The first embedded message or string with this number; empty: there is none.
std::string_view first(std::string_view message, uint32_t number) {
  MessageReader reader(message);
  while (const auto field = reader.next()) {
    if (field->number == number && field->text) {
      return *field->text;
    }
  }
  return {};
}

} // namespace

std::string version_event(double wall_time) {
  MessageWriter message;
  message.float64(event::kWallTime, wall_time);
  message.text(event::kFileVersion, "brain.Event:2");
  return message.bytes;
}

std::string start_event(double wall_time, int64_t step) {
  MessageWriter log;
  log.varint(session_log::kStatus, session_log::kStart);
  MessageWriter message = event_at(wall_time, step);
  message.text(event::kSessionLog, log.bytes);
  return message.bytes;
}

std::string scalars_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  MessageWriter all;
  for (const Scalar& scalar : scalars) {
    MessageWriter one;
    one.text(value::kTag, scalar.tag);
    one.float32(value::kSimpleValue, scalar.value);
    all.text(summary::kValue, one.bytes);
  }
  MessageWriter message = event_at(wall_time, step);
  message.text(event::kSummary, all.bytes);
  return message.bytes;
}

// A text is a vector of one string with the mark of the text plugin.
std::string text_event(double wall_time, int64_t step, const std::string& tag, std::string_view text) {
  MessageWriter size, dims, strings, plugin, marks, one, all;
  size.varint(dim::kSize, 1);
  dims.text(shape::kDim, size.bytes);
  strings.varint(tensor::kDtype, tensor::kString);
  strings.text(tensor::kShape, dims.bytes);
  strings.text(tensor::kStringVal, text);
  plugin.text(plugin_data::kPluginName, kTextPlugin);
  marks.text(metadata::kPluginData, plugin.bytes);
  one.text(value::kTag, tag);
  one.text(value::kTensor, strings.bytes);
  one.text(value::kMetadata, marks.bytes);
  all.text(summary::kValue, one.bytes);
  MessageWriter message = event_at(wall_time, step);
  message.text(event::kSummary, all.bytes);
  return message.bytes;
}

std::string event_record(std::string_view event) {
  const std::string length = little_endian(event.size(), kLengthBytes);
  std::string record = length + masked_checksum(length);
  record.append(event);
  return record + masked_checksum(event);
}

std::optional<int64_t> step_of_text(std::string_view event) {
  int64_t step = 0;
  std::string_view found;
  MessageReader reader(event);
  while (const auto field = reader.next()) {
    if (field->number == event::kStep && field->varint) {
      step = static_cast<int64_t>(*field->varint);
    } else if (field->number == event::kSummary && field->text) {
      found = *field->text;
    }
  }
  const std::string_view marks = first(first(found, summary::kValue), value::kMetadata);
  const bool is_text = first(first(marks, metadata::kPluginData), plugin_data::kPluginName) == kTextPlugin;
  return reader.ok() && is_text ? std::optional<int64_t>(step) : std::nullopt;
}

absl::Status for_each_event(const std::string& path, const std::function<void(std::string_view)>& visit) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::InternalError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  }
  auto left = static_cast<uint64_t>(std::max<std::streamoff>(0, file.tellg()));
  file.seekg(0);
  std::string bytes;
  const auto read = [&](uint64_t count) { // with its checksum
    if (left < count + kChecksumBytes) {
      return false;
    }
    bytes.resize(count + kChecksumBytes);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    left -= bytes.size();
    const std::string_view all = bytes;
    return file.good() && masked_checksum(all.substr(0, count)) == all.substr(count);
  };
  while (read(kLengthBytes)) {
    const uint64_t length = from_little_endian(std::string_view(bytes).substr(0, kLengthBytes));
    if (length > left || !read(length)) {
      break;
    }
    visit(std::string_view(bytes).substr(0, length));
  }
  return file.bad() ? absl::InternalError(absl::StrCat(path, ": cannot be read to its end")) : absl::OkStatus();
}

} // namespace distill::metrics
