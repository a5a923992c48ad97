#include "trainer/metrics/protobuf_wire.h"

#include <bit>

namespace distill::metrics {
namespace {

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kFixed32 = 5,
};

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7U) {
    bytes.push_back(static_cast<char>(value | 0x80U));
  }
  bytes.push_back(static_cast<char>(value));
}

void append_tag(std::string& bytes, int field, WireType type) {
  append_varint(bytes, (static_cast<uint64_t>(field) << 3U) | type);
}

template <typename Bits>
void append_little_endian(std::string& bytes, Bits bits) {
  for (size_t i = 0; i < sizeof(bits); ++i) {
    bytes.push_back(static_cast<char>(bits >> (8 * i)));
  }
}

} // namespace

void MessageWriter::varint(int field, uint64_t value) {
  append_tag(bytes, field, kVarint);
  append_varint(bytes, value);
}

void MessageWriter::float32(int field, float value) {
  append_tag(bytes, field, kFixed32);
  append_little_endian(bytes, std::bit_cast<uint32_t>(value));
}

void MessageWriter::float64(int field, double value) {
  append_tag(bytes, field, kFixed64);
  append_little_endian(bytes, std::bit_cast<uint64_t>(value));
}

void MessageWriter::text(int field, std::string_view value) {
  append_tag(bytes, field, kLengthDelimited);
  append_varint(bytes, value.size());
  bytes.append(value);
}

std::optional<MessageField> MessageReader::next() {
  if (rest_.empty() || !ok_) {
    return std::nullopt;
  }
  MessageField field;
  const auto tag = varint();
  bool read = tag.has_value();
  if (read) {
    field.number = static_cast<uint32_t>(*tag >> 3U);
    switch (*tag & 7U) {
      case kVarint:
        field.varint = varint();
        read = field.varint.has_value();
        break;
      case kLengthDelimited: {
        const auto count = varint();
        field.text = count ? take(*count) : std::nullopt;
        read = field.text.has_value();
        break;
      }
      case kFixed64:
        read = take(8).has_value();
        break;
      case kFixed32:
        read = take(4).has_value();
        break;
      default:
        read = false;
    }
  }
  ok_ = read;
  return read ? std::optional<MessageField>(field) : std::nullopt;
}

std::optional<uint64_t> MessageReader::varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> MessageReader::take(uint64_t count) {
  if (count > rest_.size()) {
    return std::nullopt;
  }
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

} // namespace distill::metrics
