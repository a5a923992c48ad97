#include "trainer/sharding/local_address.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::sharding {
namespace {

TEST(AddressTowards, LoopbackForThisHost) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_THAT(address_towards("localhost"), testing::AnyOf("127.0.0.1", "::1"));
}

TEST(AddressTowards, AnUnknownNameIsAnErrorThatNamesIt) {
  try {
    address_towards("no-such-host.invalid");
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("no-such-host.invalid"));
  }
}

} // namespace
} // namespace distill::sharding
