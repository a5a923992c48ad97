#include "trainer/teacher_cache/part_thread.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "tests/trainer/teacher_cache/cache_fixture.h"

namespace distill::teacher_cache {
namespace {

using testing::HasSubstr;

class PartThreadTest : public data::testing::FolderTest {
 protected:
  // Two rows of 8 bytes.
  static RowsToWrite rows(int64_t part, uint32_t document, bool last) {
    StretchEntry entry{};
    entry.document = document;
    entry.tokens = 3;
    entry.rows = 2;
    return {part, {entry}, at::full({2, 8}, static_cast<int64_t>(document), at::kByte), nullptr, last};
  }
};

TEST_F(PartThreadTest, PartsAreTheSameBytesAsOnesThatAreWrittenAtOnce) {
  PartThread thread(folder_.string(), tiny_manifest());
  for (const int64_t part : {0, 2}) {
    thread.push(rows(part, 1, false));
    thread.push(rows(part, 2, true));
  }
  ASSERT_TRUE(thread.finish().ok());
  EXPECT_EQ(thread.parts(), 2);
  EXPECT_EQ(*complete_parts(folder_.string()), (std::vector<int64_t>{0, 2}));
  auto writer = PartWriter::create(path("other"), tiny_manifest().id(), 2, 8);
  for (const uint32_t document : {1, 2}) {
    const RowsToWrite some = rows(2, document, false);
    ASSERT_TRUE(writer->append(some.stretches[0], std::string(16, static_cast<char>(document))).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
  const auto content = [](const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(content(part_path(folder_.string(), 2)), content(path("other")));
}

TEST_F(PartThreadTest, ADeviceThatWaitsForTheDiskIsSeen) {
  std::filesystem::path fifo = part_path(folder_.string(), 0) + ".partial";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  PartThread thread(folder_.string(), tiny_manifest());
  thread.push(rows(0, 1, false)); // waits for a reader of the pipe
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ifstream in(fifo, std::ios::binary);
    in.ignore(std::numeric_limits<std::streamsize>::max());
  });
  for (uint32_t document = 2; document < 12; ++document) { // more than are queued
    thread.push(rows(0, document, false));
  }
  EXPECT_GT(thread.times().idle_seconds, 0.1);
  ASSERT_TRUE(thread.finish().ok());
  EXPECT_EQ(thread.times().batches, 11);
  EXPECT_GE(thread.times().last, thread.times().first);
  std::filesystem::remove(fifo);
  thread.push(rows(1, 1, true)); // closes the pipe
  EXPECT_TRUE(thread.finish().ok());
  reader.join();
}

TEST_F(PartThreadTest, WhatIsNotCompleteIsRemoved) {
  {
    PartThread thread(folder_.string(), tiny_manifest());
    thread.push(rows(0, 1, false));
    ASSERT_TRUE(thread.finish().ok());
    EXPECT_TRUE(std::filesystem::exists(part_path(folder_.string(), 0) + ".partial"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(PartThreadTest, AFullDiskIsNamedAndNothingMoreIsWritten) {
  std::filesystem::create_symlink("/dev/full", part_path(folder_.string(), 1) + ".partial");
  PartThread thread(folder_.string(), tiny_manifest());
  thread.push(rows(0, 1, true));
  thread.push(rows(1, 1, true));
  thread.push(rows(2, 1, true));
  const absl::Status status = thread.finish();
  EXPECT_THAT(std::string(status.message()), HasSubstr("part-00000001.dtc.partial: cannot write: No space left"));
  EXPECT_EQ(*complete_parts(folder_.string()), std::vector<int64_t>{0});
  for (int i = 0; i < 20; ++i) { // does not wait for a thread that writes no more
    thread.push(rows(3, 1, true));
  }
}

// A teacher that is not finite must not become a part of a cache, whatever its rows are.
TEST_F(PartThreadTest, HiddenStatesThatAreNotFiniteAreNamedByDocumentAndToken) {
  for (const Encoding encoding : {Encoding::kFloat32, Encoding::kBFloat16, Encoding::kInt8, Encoding::kFloat8}) {
    for (const float wrong : {NAN, INFINITY}) {
      Manifest manifest = tiny_manifest();
      manifest.rows = {encoding, 70};
      at::Tensor hidden = at::full({2, 70}, 0.5f);
      PartThread thread(folder_.string(), manifest);
      RowsToWrite some = rows(0, 5, true);
      some.tokens = {4, 6};
      some.rows_RW = encode(manifest.rows, hidden);
      thread.push(some);
      EXPECT_TRUE(thread.finish().ok());
      hidden[1][66] = wrong;
      some.part = 1;
      some.rows_RW = encode(manifest.rows, hidden);
      thread.push(some);
      EXPECT_THAT(
          std::string(thread.finish().message()),
          AllOf(HasSubstr("data/train.dtok: document 5, token 6: "), HasSubstr("expected a hidden state of finite")));
      EXPECT_EQ(*complete_parts(folder_.string()), std::vector<int64_t>{0});
    }
  }
}

} // namespace
} // namespace distill::teacher_cache
