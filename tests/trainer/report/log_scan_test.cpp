#include "trainer/report/log_scan.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::report {
namespace {

class LogScanTest : public hf::FolderTest {
 protected:
  LogScan scan(const std::string& content) const {
    std::ofstream(path("log.txt")) << content;
    return *scan_log(path("log.txt"));
  }
};

TEST_F(LogScanTest, FindsTimesDeviceAndTheLastLine) {
  const LogScan log = scan(
      "2026-01-02 03:04:05 I device: cpu (CPU), 4 GiB\n"
      "2026-01-02 03:04:06 I step 1/2  loss 3\n"
      "2026-01-02 03:04:07 I wrote the model to m\n"
      "2026-01-02 03:04:08 I a line that is being wri");
  EXPECT_TRUE(log.found);
  EXPECT_EQ(log.first_time, "2026-01-02 03:04:05");
  EXPECT_EQ(log.last_time, "2026-01-02 03:04:07");
  EXPECT_EQ(log.device, "cpu (CPU), 4 GiB");
  EXPECT_EQ(log.last_line, "wrote the model to m");
  EXPECT_TRUE(log.messages.empty());
}

TEST_F(LogScanTest, AWarningBelongsToTheStepThatItNamesOrTheOneBefore) {
  const LogScan log = scan(
      "2026-01-02 03:04:05 W at the start\n"
      "2026-01-02 03:04:06 I step 7/9  loss 3\n"
      "2026-01-02 03:04:07 W later\n"
      "  which goes on in another line\n"
      "2026-01-02 03:04:07 E step 8: failed\n"
      "2026-01-02 03:04:08 I resumed from c/step-5 after step 5 (10 samples)\n"
      "2026-01-02 03:04:09 I stepping stones\n");
  ASSERT_EQ(log.messages.size(), 4);
  EXPECT_EQ(log.messages[0].step, 0);
  EXPECT_EQ(log.messages[1].step, 7);
  EXPECT_EQ(log.messages[1].text, "later");
  EXPECT_EQ(log.messages[2].step, 8);
  EXPECT_EQ(log.messages[2].level, 'E');
  EXPECT_EQ(log.messages[3].level, 'I');
  EXPECT_EQ(log.messages[3].step, 5);
}

TEST_F(LogScanTest, KeepsSoManyMessagesAndCountsTheOthers) {
  std::string content;
  for (size_t i = 0; i < kMostMessages + 5; ++i) {
    content += "2026-01-02 03:04:05 W again\n";
  }
  const LogScan log = scan(content);
  EXPECT_EQ(log.messages.size(), kMostMessages);
  EXPECT_EQ(log.left_out, 5);
}

TEST_F(LogScanTest, AMissingLogIsNotFoundAndStrangeBytesAreNoMessages) {
  EXPECT_FALSE(scan_log(path("none"))->found);
  EXPECT_TRUE(scan("\n\n2026\n2026-01-02 03:04:05 W\n\xff\xfe\n").messages.empty());
}

} // namespace
} // namespace distill::report
