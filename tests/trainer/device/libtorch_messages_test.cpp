#include "trainer/device/libtorch_messages.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace distill::device {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::string> warnings;

class LibtorchMessages : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    prepare_libtorch_messages([](const std::string& text) { warnings.push_back(text); });
  }
};

TEST_F(LibtorchMessages, HaveNoStackTraceAndItIsKept) {
  try {
    TORCH_CHECK(false, "the shapes differ");
  } catch (const std::exception& error) {
    EXPECT_EQ(error_text(error), "the shapes differ");
    EXPECT_THAT(std::string(error.what()), Not(HasSubstr("frame #"))); // what libtorch itself would print
  }
  EXPECT_THAT(newest_trace(), HasSubstr("frame #"));
  EXPECT_EQ(error_text(std::runtime_error("of the system")), "of the system");
}

TEST_F(LibtorchMessages, WarningsAboutConnectionsAreNotShown) {
  testing::internal::CaptureStderr();
  LOG(WARNING) << "sendBytes failed";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  LOG(ERROR) << "the watchdog ends the process";
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the watchdog ends the process"));
}

TEST_F(LibtorchMessages, WarningsToUsersAreGivenOn) {
  warnings.clear();
  TORCH_WARN("slower than it could be");
  EXPECT_THAT(warnings, testing::ElementsAre("slower than it could be"));
}

} // namespace
} // namespace distill::device
