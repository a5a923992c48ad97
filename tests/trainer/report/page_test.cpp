#include "trainer/report/page.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PageTest : public hf::FolderTest {
 protected:
  std::string run(const std::string& name, const std::string& metrics) const {
    std::filesystem::create_directories(path(name));
    std::ofstream(path(name + "/metrics.jsonl")) << metrics;
    return path(name);
  }
};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST_F(PageTest, LoadsNothingAndHasItsThreeParts) {
  const std::string page = *report_page({run("a", "{\"step\":1,\"loss\":2}\n")});
  for (const char* loads : {"src=", "href=\"http", "@import", "url(http", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(count(page, loads), 0) << loads;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* place : {"@CSS@", "@DATA@", "@JS@"}) {
    EXPECT_EQ(count(page, place), 0) << place;
  }
  EXPECT_EQ(count(page, "</script>"), 2);
  EXPECT_EQ(count(page, "</style>"), 1);
}

TEST_F(PageTest, WhatARunHasWrittenCannotEndTheElementOfTheData) {
  const std::string folder = run("b", "{\"step\":1,\"</script><!--\":2}\n");
  std::ofstream(folder + "/config.yaml") << "student:\n  path: \"</script><script>@JS@ & \u2028'\"\n";
  const std::string page = *report_page({folder});
  EXPECT_EQ(count(page, "</script>"), 2);
  EXPECT_THAT(page, Not(HasSubstr("<!--")));
  EXPECT_THAT(page, Not(HasSubstr("\u2028")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script\\u003e\\u003cscript\\u003e@JS@ \\u0026 \\u2028'"));
}

TEST_F(PageTest, FoldersOfTheSameNameAreToldApart) {
  std::filesystem::create_directories(path("x"));
  std::filesystem::create_directories(path("y"));
  const std::string first = run("x/run", "{\"step\":1}\n"), second = run("y/run", "{\"step\":1}\n");
  const std::string page = *report_page({first, second});
  EXPECT_THAT(page, HasSubstr("{\"name\":\"" + first + "\""));
  EXPECT_THAT(page, HasSubstr("{\"name\":\"" + second + "\""));
}

TEST_F(PageTest, AnErrorLeavesTheOldFile) {
  const std::string folder = run("c", "{\n");
  std::ofstream(path("page.html")) << "old";
  EXPECT_FALSE(write_report({folder}, path("page.html")).ok());
  std::ifstream file(path("page.html"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "old");
}

} // namespace
} // namespace distill::report
