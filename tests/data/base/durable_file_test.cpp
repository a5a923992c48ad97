#include "data/base/durable_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "data/base/json.h"

namespace distill::base {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DurableFileTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  std::string path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  static std::string content(const std::string& path) {
    return read_text_file(path, /*max_bytes=*/1 << 20).value_or("none");
  }
  static std::string message(const absl::Status& status) {
    return std::string(status.message());
  }

  std::string folder_ = testing::TempDir() + "durable_file_test";
};

// Writes beyond `bytes` of a file fail, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &former_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, former_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit former_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(DurableFileTest, CreateEmptiesAndAppendGoesOn) {
  for (const std::string text : {"first", "second"}) {
    auto file = DurableFile::create(path("a")).value();
    EXPECT_TRUE(file.write(text).ok());
    EXPECT_TRUE(file.close().ok());
    EXPECT_EQ(content(path("a")), text);
  }
  auto file = DurableFile::append_to(path("a")).value();
  EXPECT_TRUE(file.write(" and third").ok());
  EXPECT_TRUE(file.sync().ok());
  EXPECT_EQ(content(path("a")), "second and third");
}

TEST_F(DurableFileTest, ErrorsNameTheFileAndTheReason) {
  EXPECT_THAT(
      message(write_file(path("none/a"), "x")), testing::EndsWith("none/a: cannot create: No such file or directory"));
  EXPECT_THAT(message(sync_file(path("none"))), HasSubstr("none: cannot sync: No such file"));
  ASSERT_TRUE(write_file(path("a"), "x").ok());
  EXPECT_THAT(message(sync_folder(path("a"))), HasSubstr("a: cannot sync: Not a directory"));
  const FileSizeLimit full(10);
  EXPECT_THAT(message(write_file(path("a"), std::string(11, 'x'))), HasSubstr("a: cannot write: File too large"));
}

TEST_F(DurableFileTest, ReplacingIsAllOrNothing) {
  ASSERT_TRUE(replace_file(path("a"), "old").ok());
  {
    const FileSizeLimit full(10);
    EXPECT_EQ(replace_file(path("a"), std::string(11, 'x')).code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(content(path("a")), "old");
  EXPECT_FALSE(fs::exists(path("a.partial")));
  ASSERT_TRUE(replace_file(path("a"), "new").ok());
  EXPECT_EQ(content(path("a")), "new");
  EXPECT_FALSE(fs::exists(path("a.partial")));
}

TEST_F(DurableFileTest, PublishingReplacesTheOlderFolder) {
  for (const std::string text : {"old", "new"}) {
    fs::create_directory(path("made"));
    ASSERT_TRUE(write_file(path("made/file"), text).ok());
    ASSERT_TRUE(publish_folder(path("made"), path("target")).ok());
    EXPECT_EQ(content(path("target/file")), text);
    EXPECT_FALSE(fs::exists(path("made")) || fs::exists(path("target") + kReplacedFolder));
  }
}

TEST_F(DurableFileTest, WhatCannotBePublishedLeavesTheOlderFolder) {
  fs::create_directory(path("target"));
  ASSERT_TRUE(write_file(path("target/file"), "old").ok());
  EXPECT_THAT(message(publish_folder(path("none"), path("target"))), HasSubstr("none: cannot sync"));
  // A folder cannot be moved into itself: the rename fails after the older folder has been moved aside.
  EXPECT_THAT(message(publish_folder(folder_, path("target"))), HasSubstr("cannot rename to " + path("target")));
  EXPECT_EQ(content(path("target/file")), "old");
}

TEST_F(DurableFileTest, AFolderThatIsNotReplacedCostsNoOther) {
  fs::create_directory(path("target.old"));
  for (int times = 0; times < 2; ++times) { // the second one replaces the first
    fs::create_directory(path("made"));
    ASSERT_TRUE(publish_folder(path("made"), path("target")).ok());
    EXPECT_TRUE(fs::exists(path("target.old"))) << "it is somebody else's";
  }
}

} // namespace
} // namespace distill::base
