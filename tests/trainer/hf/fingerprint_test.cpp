#include "trainer/hf/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::hf {
namespace {

class FingerprintTest : public FolderTest {
 protected:
  std::string fingerprint() const {
    const auto text = folder_fingerprint(root());
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }
};

TEST_F(FingerprintTest, ChangesWithConfigAndWeightsAndNothingElse) {
  write("config.json", "{}");
  write("model.safetensors", std::string(3 << 20, 'a'));
  const std::string before = fingerprint();
  EXPECT_THAT(
      before, testing::AllOf(testing::HasSubstr("config.json 2 "), testing::HasSubstr("model.safetensors 3145728 ")));
  write("README.md", "of no importance");
  EXPECT_EQ(fingerprint(), before);
  write("config.json", "[]");
  EXPECT_NE(fingerprint(), before);
}

TEST_F(FingerprintTest, SeesTheStartTheEndAndTheMiddleOfLargeFiles) {
  std::string content(5 << 20, 'a');
  write("model.safetensors", content);
  std::string last = fingerprint();
  for (const size_t place : {size_t{0}, content.size() - 1, content.size() / 64 * 20 + 5}) {
    content[place] = 'b';
    write("model.safetensors", content);
    const std::string now = fingerprint();
    EXPECT_NE(now, last) << place;
    last = now;
  }
}

TEST_F(FingerprintTest, AMissingFolderIsNamed) {
  EXPECT_THAT(std::string(folder_fingerprint(path("nowhere")).status().message()), testing::HasSubstr(path("nowhere")));
}

} // namespace
} // namespace distill::hf
