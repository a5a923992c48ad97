#include "data/base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace distill::base {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& content, const std::string& name = "mapped_file_test") {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string repeated(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>('a' + i % 23);
  }
  return text;
}

TEST(MappedFile, HoldsTheFilesBytesAlsoAfterAMove) {
  const std::string text = repeated(10000);
  auto file = MappedFile::open(file_of(text)).value();
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.text(), text);
  MappedFile assigned = *MappedFile::open(file_of("", "mapped_file_test_other"));
  assigned = std::move(moved);
  EXPECT_EQ(assigned.text(), text);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const auto file = MappedFile::open(file_of("")).value();
  EXPECT_EQ(file.size(), 0);
  EXPECT_TRUE(file.text().empty());
}

TEST(MappedFile, ReleasedAndAdvisedBytesCanBeReadAgain) {
  const std::string text = repeated(5 * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + 7);
  const auto file = MappedFile::open(file_of(text)).value();
  for (const Access access : {Access::kSequential, Access::kRandom, Access::kNormal}) {
    file.advise(3, text.size() + 100, access);
    file.release(1, text.size());
    EXPECT_EQ(file.text(), text);
  }
}

TEST(MappedFile, ErrorsNameTheFileAndTheReason) {
  const auto none = MappedFile::open(testing::TempDir() + "no_such_file");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no_such_file: cannot open: No such file or directory"));
  const auto folder = MappedFile::open(testing::TempDir());
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("not a regular file"));
}

TEST(MappedFile, APipeDoesNotBlock) {
  const std::string pipe = testing::TempDir() + "mapped_file_test_pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(MappedFile::open(pipe).status().message()), HasSubstr("not a regular file"));
}

} // namespace
} // namespace distill::base
