#include "trainer/metrics/line_fields.h"

#include <gtest/gtest.h>

#include "trainer/metrics/task_progress.h"

namespace distill::metrics {
namespace {

const std::vector<LineField> kFields = {
    {"a", 1, "long name a", "a"},
    {"extra", 9, "extra"},
    {"b", 2, "long name b", "b"},
    {"mark", 5, "a long mark", "mark", Colour::kWarning},
};

TEST(FittingLine, FieldsComeByPriorityAndStandInTheirOrder) {
  EXPECT_EQ(fitting_line(kFields, 100, false), "long name a  extra  long name b  a long mark");
  EXPECT_EQ(fitting_line(kFields, 44, false), "long name a  extra  long name b  a long mark");
  EXPECT_EQ(fitting_line(kFields, 43, false), "long name a  long name b  a long mark");
  EXPECT_EQ(fitting_line(kFields, 30, false), "long name a  long name b  mark");
  EXPECT_EQ(fitting_line(kFields, 24, false), "long name a  long name b");
  EXPECT_EQ(fitting_line(kFields, 23, false), "a extra b a long mark"); // in brief, since the names do not fit
  EXPECT_EQ(fitting_line(kFields, 3, false), "a b");
  EXPECT_EQ(fitting_line(kFields, 2, false), "a");
}

TEST(FittingLine, IsNeverTooLong) {
  for (int64_t columns = 0; columns < 60; ++columns) {
    EXPECT_LE(fitting_line(kFields, columns, false).size(), static_cast<size_t>(columns));
  }
  EXPECT_EQ(fitting_line({{"a", 1, "abcdef"}}, 3, true), "abc");
}

TEST(FittingLine, ColourTakesNoRoom) {
  EXPECT_EQ(fitting_line(kFields, 30, true), "long name a  long name b  \033[33mmark\033[0m");
}

TEST(WholeLine, HasAllFieldsWithoutColour) {
  EXPECT_EQ(whole_line(kFields), "long name a  extra  long name b  a long mark");
}

TEST(FormatDuration, HoursOnlyWhenThereAreAny) {
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3661), "1:01:01");
  EXPECT_EQ(format_duration(std::nan("")), "0:00");
  EXPECT_EQ(brief_duration(3661), "1:01:01");
  EXPECT_EQ(brief_duration(100 * 3600), "4d4h");
}

TEST(TaskLine, HasABarACountAndATime) {
  EXPECT_EQ(
      task_line("evaluation", 30, 120, "sequences", 2, 79, false),
      "[##........]  evaluation  25%  30/120 sequences  eta 0:45");
  EXPECT_EQ(task_line("evaluation", 30, 120, "sequences", 2, 39, false), "[##........]  evaluation  25%  eta 0:45");
  EXPECT_EQ(
      task_line("verifying", 250'000'000, 1'000'000'000, "bytes", 0, 79, false),
      "[##........]  verifying  25%  0.25 of 1.00 GB");
}

} // namespace
} // namespace distill::metrics
