#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The few parts of protobuf's wire format that event files need
// (https://protobuf.dev/programming-guides/encoding/).
namespace distill::metrics {

// Appends fields to a message; the message is `bytes`.
struct MessageWriter {
  std::string bytes;

  void varint(int field, uint64_t value);
  void float32(int field, float value);
  void float64(int field, double value);
  void text(int field, std::string_view value); // a string, bytes or an embedded message
};

// A field of a message. `text`: of strings, bytes and embedded messages. `varint`: of varints.
struct MessageField {
  uint32_t number = 0;
  std::optional<uint64_t> varint;
  std::optional<std::string_view> text;
};

// Reads the fields of a message in order; its content is not trusted.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  // nullopt: the end, or bytes that are no field.
  std::optional<MessageField> next();
  // Tells whether all that has been read was well-formed.
  bool ok() const {
    return ok_;
  }

 private:
  std::optional<uint64_t> varint();
  std::optional<std::string_view> take(uint64_t count);

  std::string_view rest_;
  bool ok_ = true;
};

} // namespace distill::metrics
