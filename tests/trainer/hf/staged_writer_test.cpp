#include "trainer/hf/staged_writer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "data/base/checksum.h"
#include "trainer/device/device_hooks.h"

namespace distill::hf {
namespace {

// On a GPU, where there is one, tensors come from it.
at::Device tested_device() {
  return device::cuda_device_count() > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

class StagedWriterTest : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "staged_writer_test.bin";

  void SetUp() override {
    std::filesystem::remove_all(path_);
  }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static std::string bytes_of(const at::Tensor& values) {
    const at::Tensor host = values.cpu().contiguous();
    return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
  }
};

TEST_F(StagedWriterTest, BytesAreInOrderAndTheChecksumIsTheFiles) {
  at::manual_seed(5);
  StagedWriter writer(/*threads=*/3);
  for (const bool keep_pages : {false, true}) { // and two files with one writer
    // More than all buffers hold; tensors that begin at odd places; other dtypes between them.
    const at::Tensor large = at::randn({41 << 20}), small = at::randn({3}), ids = at::arange(7);
    const std::string expected = "header!" + bytes_of(large.to(at::kBFloat16)) + "x" + bytes_of(small) + bytes_of(ids);
    ASSERT_TRUE(writer.begin(path_, static_cast<int64_t>(expected.size()), keep_pages).ok());
    ASSERT_TRUE(writer.append_bytes("header!").ok());
    at::Tensor source = large.to(tested_device());
    ASSERT_TRUE(writer.append(source, at::kBFloat16).ok());
    source.zero_(); // it was read already
    ASSERT_TRUE(writer.append_bytes("x").ok());
    ASSERT_TRUE(writer.append(small, at::kFloat).ok());
    ASSERT_TRUE(writer.append(ids.to(tested_device()), at::kLong).ok());
    const auto checksum = writer.finish().value();
    EXPECT_TRUE(content() == expected);
    EXPECT_EQ(checksum, *base::file_checksum(path_));
  }
}

TEST_F(StagedWriterTest, AFileThatCannotBeWrittenIsNamed) {
  StagedWriter writer;
  EXPECT_THAT(
      std::string(writer.begin("/nowhere/file", 10, false).message()), ::testing::HasSubstr("/nowhere/file: cannot"));
}

// What a thread meets is the error of a later call: the process may write no file beyond 8 MiB.
TEST_F(StagedWriterTest, AThreadsErrorIsReturned) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  absl::Status status;
  {
    StagedWriter writer;
    ASSERT_TRUE(writer.begin(path_, int64_t{64} << 20, false).ok());
    const struct rlimit limit { 8 << 20, before.rlim_max };
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    status = writer.append(at::ones({16 << 20}), at::kFloat);
    status.Update(writer.finish().status());
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path_ + ": cannot write: File too large"));
}

TEST_F(StagedWriterTest, AWriterThatIsGivenUpEnds) {
  StagedWriter writer;
  ASSERT_TRUE(writer.begin(path_, int64_t{64} << 20, false).ok());
  ASSERT_TRUE(writer.append(at::ones({8 << 20}), at::kFloat).ok());
}

} // namespace
} // namespace distill::hf
