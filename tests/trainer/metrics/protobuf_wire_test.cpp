#include "trainer/metrics/protobuf_wire.h"

#include <gtest/gtest.h>

namespace distill::metrics {
namespace {

TEST(ProtobufWire, FieldsAreReadAsTheyWereWritten) {
  MessageWriter message;
  message.varint(1, 300);
  message.float32(2, 1.5F);
  message.float64(3, -2.5);
  message.text(200, "text");
  message.varint(5, ~uint64_t{0}); // a negative number
  MessageReader reader(message.bytes);
  auto field = reader.next();
  ASSERT_TRUE(field);
  EXPECT_EQ(field->number, 1U);
  EXPECT_EQ(field->varint, 300U);
  EXPECT_EQ(reader.next()->number, 2U);
  EXPECT_EQ(reader.next()->number, 3U);
  field = reader.next();
  ASSERT_TRUE(field);
  EXPECT_EQ(field->number, 200U);
  EXPECT_EQ(field->text, "text");
  EXPECT_EQ(reader.next()->varint, ~uint64_t{0});
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.ok());
}

TEST(ProtobufWire, EveryTruncationOfAFieldIsNoticed) {
  MessageWriter message;
  message.text(1, "a longer text");
  for (size_t size = 1; size < message.bytes.size(); ++size) {
    MessageReader reader(std::string_view(message.bytes).substr(0, size));
    EXPECT_FALSE(reader.next()) << size;
    EXPECT_FALSE(reader.ok()) << size;
  }
}

TEST(ProtobufWire, AVarintWithoutAnEndIsNoField) {
  MessageReader reader("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.ok());
}

} // namespace
} // namespace distill::metrics
