#include "trainer/hf/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_bytes(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return bytes + header + std::string(data_bytes, '\1');
}

std::string error_of(const std::string& bytes) {
  const auto header = parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), "file.safetensors");
  return header.ok() ? "accepted" : std::string(header.status().message());
}

using SafetensorsTest = FolderTest;

TEST_F(SafetensorsTest, WrittenTensorsAreReadBack) {
  const std::map<std::string, at::Tensor> tensors{
      {"a", at::randn({3, 5})},
      {"b.bf16", at::randn({4}).to(at::kBFloat16)},
      {"c", at::arange(7)},
      {"empty", at::zeros({0, 4})},
      {"scalar", at::tensor(2.5)},
      {"bool", at::tensor({1, 0, 1}).to(at::kBool)},
      {"strided", at::randn({4, 6}).t()},
      {"half", at::randn({2}).to(at::kHalf)}};
  ASSERT_TRUE(write_safetensors(path("x.safetensors"), tensors, {{"key", "value \"quoted\""}}).ok());
  const auto contents = read_safetensors(path("x.safetensors")).value();
  EXPECT_EQ(contents.metadata.at("key"), "value \"quoted\"");
  ASSERT_EQ(contents.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(contents.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(contents.tensors.at(name), tensor)) << name;
  }
}

TEST_F(SafetensorsTest, ElementsAreConvertedFromAnyOffset) {
  // A header of odd length leaves the data unaligned.
  const at::Tensor values = at::randn({10}).to(at::kBFloat16);
  std::string header = R"({"w":{"dtype":"BF16","shape":[10],"data_offsets":[0,20]}})";
  header.append(1 - header.size() % 2, ' ');
  std::string bytes = file_bytes(header, 0);
  ASSERT_EQ(bytes.size() % 2, 1U);
  bytes.append(static_cast<const char*>(values.const_data_ptr()), 20);
  write("odd.safetensors", bytes);
  const auto file = SafetensorsFile::open(path("odd.safetensors")).value();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    at::Tensor part = at::empty({4}, dtype);
    file.copy_elements(*file.find("w"), 3, part);
    EXPECT_TRUE(at::equal(part, values.narrow(0, 3, 4).to(dtype)));
  }
  EXPECT_EQ(file.find("v"), nullptr);
}

TEST_F(SafetensorsTest, HostileHeadersAreRefused) {
  struct Case {
    std::string bytes;
    const char* error;
  };
  const auto one = [](const std::string& entry, size_t data = 8) { return file_bytes("{\"t\":" + entry + "}", data); };
  const std::vector<Case> cases{
      {"", "at least 8 bytes"},
      {"1234567", "at least 8 bytes"},
      {std::string(8, '\0'), "does not begin with '{'"},
      {std::string(8, '\xff') + "{}", "at most 100000000"},
      {std::string("\x00\x00\x00\x7f\x00\x00\x00\x00{}", 10), "at most 100000000"},
      {std::string("\x10\x00\x00\x00\x00\x00\x00\x00{}", 10), "truncated"},
      {file_bytes("[]", 0), "does not begin with '{'"},
      {file_bytes("{", 0), "not valid JSON"},
      {file_bytes("{} {}", 0), "not valid JSON"},
      {file_bytes("{}", 1), "1 bytes of data, but the header describes 0"},
      {file_bytes("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0), "nested deeper"},
      {one("3"), "an object is expected, found 3"},
      {one("{}"), "missing key \"dtype\""},
      {one(R"({"dtype":"F32","shape":[2]})"), "missing key \"data_offsets\""},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), "unknown key \"more\""},
      {one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), "unknown dtype \"F33\""},
      {one(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), "unknown dtype 7"},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "shape: an array"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "shape: a non-negative integer is expected, found -2"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "found 2.0"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), "18446744073709551615"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]})"),
       "does not fit 64 bits"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "takes 12 bytes, but data_offsets hold 8"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "do not lie within"},
      {one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"), "do not lie within the file's 8 bytes"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "two non-negative integers"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"), "two non-negative integers"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "a hole"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "the header describes 4"},
      {file_bytes(
           R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
           8),
       "overlaps"},
      {file_bytes(
           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
           8),
       "\"a\" appears twice"},
      {file_bytes(R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8),
       "\"dtype\" appears twice"},
      {file_bytes(R"({"__metadata__":{"a":1}})", 0), "__metadata__.a: a string is expected"},
      {file_bytes(R"({"__metadata__":[]})", 0), "__metadata__: an object"},
      {file_bytes("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8), "not valid JSON"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(error_of(c.bytes), AllOf(HasSubstr("file.safetensors: "), HasSubstr(c.error)));
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  ASSERT_TRUE(write_safetensors(path("x"), {{"a", at::randn({2, 3})}, {"b", at::randn({5}).to(at::kBFloat16)}}).ok());
  const std::string bytes = read("x");
  ASSERT_EQ(error_of(bytes), "accepted");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(bytes.substr(0, size)), "accepted") << size;
  }
  EXPECT_NE(error_of(bytes + "x"), "accepted");
}

// A flipped bit is refused, or leaves a header that still describes the file completely.
TEST_F(SafetensorsTest, NoFlippedBitIsTrusted) {
  ASSERT_TRUE(write_safetensors(path("x"), {{"a", at::randn({2, 3})}, {"b", at::randn({5}).to(at::kBFloat16)}}).ok());
  const std::string bytes = read("x");
  const size_t header_end = bytes.size() - 34;
  int refused = 0;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << (bit % 8));
    const auto header = parse_safetensors_header(flipped, static_cast<int64_t>(flipped.size()), "file.safetensors");
    refused += !header.ok();
    if (!header.ok()) {
      continue;
    }
    int64_t described = 0;
    for (const auto& [name, tensor] : header->tensors) {
      ASSERT_EQ(
          tensor.numel() * static_cast<int64_t>(at::elementSize(*scalar_type_of(tensor.dtype))),
          tensor.end - tensor.begin);
      described += tensor.end - tensor.begin;
    }
    EXPECT_EQ(described, static_cast<int64_t>(flipped.size()) - header->data_begin);
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 4);
}

TEST_F(SafetensorsTest, ErrorsNameTheFile) {
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::open(path("none")).status()));
  EXPECT_THAT(std::string(SafetensorsFile::open(path("none")).status().message()), HasSubstr(path("none")));
  EXPECT_FALSE(SafetensorsFile::open(root()).ok());
  write("zero", "");
  EXPECT_THAT(std::string(SafetensorsFile::open(path("zero")).status().message()), HasSubstr("at least 8 bytes"));
  EXPECT_FALSE(write_safetensors(path("no/such/folder"), {}).ok());
}

TEST_F(SafetensorsTest, TheWriterHoldsToWhatItAnnounced) {
  auto writer = SafetensorsWriter::create(path("w"), {{"a", {"F32", {4}, 0, 0}}}, {}).value();
  ASSERT_TRUE(writer->append(at::zeros({3})).ok());
  EXPECT_THROW(writer->finish().IgnoreError(), c10::Error);
  EXPECT_THROW(writer->append(at::zeros({2})).IgnoreError(), c10::Error);
  ASSERT_TRUE(writer->append(at::zeros({1})).ok());
  EXPECT_TRUE(writer->finish().ok());
  EXPECT_FALSE(SafetensorsWriter::create(path("w"), {{"a", {"F32", {1}, 0, 0}}, {"a", {"F32", {1}, 0, 0}}}, {}).ok());
}

} // namespace
} // namespace distill::hf
