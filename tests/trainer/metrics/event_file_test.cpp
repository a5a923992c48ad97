#include "trainer/metrics/event_file.h"

#include <absl/strings/escaping.h>
#include <gtest/gtest.h>

#include <fstream>

namespace distill::metrics {
namespace {

std::string hex(const std::string& bytes) {
  return absl::BytesToHexString(bytes);
}

// The bytes that the tensorboard package 2.21 makes of the same messages (event_pb2.Event(...).SerializeToString() and
// tensorboard.summary.writer.record_writer.RecordWriter).
TEST(Events, AreThoseOfTheTensorboardPackage) {
  EXPECT_EQ(hex(version_event(1700000000.25)), "0900001040fc54d9411a0d627261696e2e4576656e743a32");
  EXPECT_EQ(hex(start_event(1.5, 300)), "09000000000000f83f10ac023a020801");
  const std::string scalars = scalars_event(1.5, 300, {{"train/loss", 0.1F}, {"b", -2}});
  EXPECT_EQ(hex(scalars), "09000000000000f83f10ac022a1d0a110a0a747261696e2f6c6f737315cdcccc3d0a080a016215000000c0");
  EXPECT_EQ(
      hex(text_event(1.5, 300, "eval/s", "hi")),
      "09000000000000f83f10ac022a220a200a066576616c2f73420c0807120412020801420268694a080a060a0474657874");
  EXPECT_EQ(
      hex(event_record(scalars)),
      "2b00000000000000861bc34b"
      "09000000000000f83f10ac022a1d0a110a0a747261696e2f6c6f737315cdcccc3d0a080a016215000000c0"
      "ad06c3b6");
}

TEST(Events, OnlyATextHasTheStepOfAText) {
  EXPECT_EQ(step_of_text(text_event(1.5, 300, "eval/s", "hi")), 300);
  EXPECT_FALSE(step_of_text(scalars_event(1.5, 300, {{"text", 1}})));
  EXPECT_FALSE(step_of_text(version_event(1)));
  EXPECT_FALSE(step_of_text("no message"));
}

class EventFile : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "event_file_test";

  std::vector<std::string> read(const std::string& content) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
    std::vector<std::string> events;
    EXPECT_TRUE(for_each_event(path_, [&](std::string_view event) { events.emplace_back(event); }).ok());
    return events;
  }
};

TEST_F(EventFile, IsReadUpToItsTornOrDamagedRecord) {
  const std::vector<std::string> events{"first", std::string(1000, 'x'), "", "last"};
  std::string content;
  std::vector<size_t> ends;
  for (const std::string& event : events) {
    content += event_record(event);
    ends.push_back(content.size());
  }
  EXPECT_EQ(read(content), events);
  for (size_t size = 0; size < content.size(); ++size) {
    const auto whole = std::count_if(ends.begin(), ends.end(), [&](size_t end) { return end <= size; });
    EXPECT_EQ(read(content.substr(0, size)), std::vector<std::string>(events.begin(), events.begin() + whole)) << size;
  }
  std::string damaged = content;
  damaged[ends[0] + 20] ^= 1;
  EXPECT_EQ(read(damaged), std::vector<std::string>{"first"});
  damaged = content;
  damaged[ends[0] + 7] = '\x7f'; // a huge length
  EXPECT_EQ(read(damaged), std::vector<std::string>{"first"});
}

TEST_F(EventFile, ThatIsMissingIsAnError) {
  const auto status = for_each_event(testing::TempDir() + "no-such-file", [](std::string_view) {});
  EXPECT_TRUE(absl::IsInternal(status));
}

} // namespace
} // namespace distill::metrics
