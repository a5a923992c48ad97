#include "trainer/config/numbers.h"

#include <gtest/gtest.h>

namespace distill::config {
namespace {

int64_t integer(std::string_view text) {
  std::string why;
  return parse_integer(text, &why).value_or(-1);
}

TEST(ParseInteger, TakesWholeNumbersInEverySpelling) {
  EXPECT_EQ(integer("0"), 0);
  EXPECT_EQ(integer("-0"), 0);
  EXPECT_EQ(integer("0e999"), 0);
  EXPECT_EQ(integer("+17"), 17);
  EXPECT_EQ(integer("1e9"), 1'000'000'000);
  EXPECT_EQ(integer("1E+3"), 1000);
  EXPECT_EQ(integer("2.5e3"), 2500);
  EXPECT_EQ(integer("1500e-2"), 15);
  EXPECT_EQ(integer("3.000"), 3);
  EXPECT_EQ(integer("1_000_000"), 1'000'000);
  EXPECT_EQ(integer("-12e1"), -120);
}

TEST(ParseInteger, IsExactToTheLastOfItsSixtyFourBits) {
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(integer("9.223372036854775807e18"), INT64_MAX);
  std::string why;
  EXPECT_EQ(parse_integer("9223372036854775808", &why), std::nullopt);
  EXPECT_EQ(parse_integer("1e19", &why), std::nullopt);
}

TEST(ParseInteger, RefusesWhatIsNone) {
  for (const char* text :
       {"", "-", ".", "e5", "1e", "1e+", "1.5", "1e-1", "0x10", "1,000", "_1", "1_", "1._5", "nan", " 1"}) {
    std::string why;
    EXPECT_EQ(parse_integer(text, &why), std::nullopt) << text;
    EXPECT_NE(why, "") << text;
  }
}

TEST(ParseReal, IsFiniteAndDecimal) {
  std::string why;
  EXPECT_EQ(parse_real("1e-5", &why), 1e-5);
  EXPECT_EQ(parse_real("-.5", &why), -0.5);
  EXPECT_EQ(parse_real("5.", &why), 5.0);
  EXPECT_EQ(parse_real("1_0.5", &why), 10.5);
  for (const char* text : {"nan", ".inf", "-inf", "1e999", "0x1p3", "1e5f", "infinity"}) {
    EXPECT_EQ(parse_real(text, &why), std::nullopt) << text;
  }
}

} // namespace
} // namespace distill::config
