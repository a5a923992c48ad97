#include "data/base/output_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace distill::base {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class OutputPath : public testing::Test {
 protected:
  OutputPath() : root_(fs::path(testing::TempDir()) / ("output_path." + std::to_string(::getpid()))) {
    fs::create_directories(root_ / "folder");
    std::ofstream(root_ / "file") << "content";
    fs::create_symlink("folder", root_ / "good");
    fs::create_symlink("nothing", root_ / "dangling");
    fs::create_symlink("loop", root_ / "loop");
    ::mkfifo((root_ / "pipe").c_str(), 0600);
  }
  ~OutputPath() override {
    fs::permissions(root_ / "folder", fs::perms::owner_all);
    fs::remove_all(root_);
  }
  std::string path(const std::string& below) const {
    return (root_ / below).string();
  }
  std::string folder(const std::string& below) const {
    const absl::Status status = check_output_folder("run.dir", path(below));
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  std::string file(const std::string& below) const {
    const absl::Status status = check_output_file("--output", path(below));
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  fs::path root_;
};

TEST_F(OutputPath, AFolderThatCanBeMadeIsGood) {
  for (const char* good : {"folder", "folder/", "good", "good/new", "new", "new/and/deep", "folder/../other"}) {
    EXPECT_EQ(folder(good), "") << good;
  }
  EXPECT_FALSE(fs::exists(path("new"))); // nothing is made
}

TEST_F(OutputPath, WhatIsInTheWayIsNamed) {
  EXPECT_THAT(
      folder("file"), AllOf(StartsWith("run.dir: expected a folder"), HasSubstr(path("file") + " is a file, where")));
  EXPECT_THAT(folder("file/run"), HasSubstr(path("file") + " is a file, where"));
  EXPECT_THAT(folder("file/run/deep"), HasSubstr(path("file") + " is a file, where"));
  for (const char* below : {"loop", "loop/run"}) {
    EXPECT_THAT(folder(below), HasSubstr(path("loop") + " is a symbolic link that leads back to itself"));
  }
  for (const char* below : {"dangling", "dangling/run"}) {
    EXPECT_THAT(
        folder(below), HasSubstr(path("dangling") + " is a symbolic link to nothing, which does not exist; make"));
  }
  EXPECT_THAT(folder(std::string(300, 'x')), HasSubstr("longer than the system allows"));
  EXPECT_THAT(folder("new/" + std::string(300, 'x')), HasSubstr("longer than the system allows"));
  EXPECT_THAT(std::string(check_output_folder("run.dir", "/proc/run").message()), HasSubstr("belongs to the kernel"));
  EXPECT_THAT(std::string(check_output_folder("run.dir", "").message()), HasSubstr("empty path"));
}

TEST_F(OutputPath, AFolderWithoutPermissionIsNamed) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may write everywhere";
  }
  fs::permissions(path("folder"), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(folder("folder/run"), HasSubstr("no permission to make files in " + path("folder")));
  EXPECT_THAT(file("folder/page.html"), HasSubstr("no permission to make files in " + path("folder")));
}

TEST_F(OutputPath, AFileIsNewOrARegularOne) {
  EXPECT_EQ(file("file"), "");
  EXPECT_EQ(file("new.html"), "");
  EXPECT_THAT(file("new/page.html"), HasSubstr("there is no folder " + path("new")));
  EXPECT_THAT(file("folder"), HasSubstr("it is a folder"));
  EXPECT_THAT(file("folder/"), HasSubstr("the name of a file"));
  EXPECT_THAT(file("file/page.html"), HasSubstr(path("file") + " is a file, where a folder is needed"));
  EXPECT_THAT(file("good"), HasSubstr("a link or a device"));
  EXPECT_THAT(file("loop/page.html"), HasSubstr("leads back to itself"));
  EXPECT_THAT(file(std::string(300, 'x')), HasSubstr("longer than the system allows"));
  EXPECT_THAT(file("pipe"), HasSubstr("a link or a device"));
}

} // namespace
} // namespace distill::base
