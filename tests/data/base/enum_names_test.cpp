#include "data/base/enum_names.h"

#include <gtest/gtest.h>

namespace distill::base {
namespace {

enum class Fruit {
  kApple,
  kPear2,
  kFig,
};
constexpr auto enum_names(Fruit) {
  return names_of<Fruit>("apple", "pear_2", "fig");
}

TEST(EnumNames, EveryValueReadsBackFromItsName) {
  for (const Fruit fruit : {Fruit::kApple, Fruit::kPear2, Fruit::kFig}) {
    EXPECT_EQ(enum_named<Fruit>(enum_name(fruit)), fruit);
  }
  EXPECT_STREQ(enum_name(Fruit::kPear2), "pear_2");
}

TEST(EnumNames, OtherTextsHaveNoValue) {
  for (const char* text : {"", "Apple", "appl", "apple ", "kFig"}) {
    EXPECT_EQ(enum_named<Fruit>(text), std::nullopt) << text;
  }
}

TEST(EnumNames, ChoicesAreListedForAnError) {
  EXPECT_EQ(enum_choices<Fruit>(), "apple, pear_2 or fig");
}

// What makes a missing name an error of the compiler.
TEST(EnumNames, AValueBeyondTheEnumeratorsIsTold) {
  static_assert(internal::is_enumerator<Fruit::kPear2>());
  static_assert(internal::is_enumerator<static_cast<Fruit>(2)>());
  static_assert(!internal::is_enumerator<static_cast<Fruit>(3)>());
}

} // namespace
} // namespace distill::base
