#include "trainer/report/step_series.h"

#include <gmock/gmock.h>

namespace distill::report {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;

Json record(int64_t step, double loss) {
  return {{"step", step}, {"loss", loss}, {"tokens", 10 * step}, {"seconds", 0.5}, {"phase_seconds", {{"head", 0.25}}}};
}

TEST(StepSeries, HasEveryStepWhileThereIsRoom) {
  StepSeries series(4);
  for (int64_t step = 1; step <= 4; ++step) {
    series.add(step, record(step, static_cast<double>(step)));
  }
  const Json json = series.json();
  EXPECT_EQ(json["x"]["step"], Json({1, 2, 3, 4}));
  EXPECT_EQ(json["x"]["tokens"], Json({10, 20, 30, 40}));
  EXPECT_EQ(json["x"]["seconds"], Json({0.5, 1.0, 1.5, 2.0}));
  EXPECT_EQ(json["series"]["loss"], Json({{"mean", {1.0, 2.0, 3.0, 4.0}}}));
  EXPECT_EQ(json["series"]["phase_seconds.head"]["mean"], Json({0.25, 0.25, 0.25, 0.25}));
  EXPECT_FALSE(json["series"].contains("tokens"));
}

TEST(StepSeries, TheReadingOfATeachersCacheIsShown) {
  StepSeries series(4);
  Json with = record(1, 2);
  with["teacher_read"] = {{"bytes", 1000}, {"bytes_per_second", 5e8}};
  series.add(1, record(1, 2));
  series.add(2, with);
  const Json json = series.json();
  EXPECT_EQ(json["series"]["teacher_read.bytes"]["mean"], Json({nullptr, 1000.0}));
  EXPECT_EQ(json["series"]["teacher_read.bytes_per_second"]["mean"], Json({nullptr, 5e8}));
}

TEST(StepSeries, APointHasMeanSmallestAndLargestOfItsSteps) {
  StepSeries series(4);
  for (int64_t step = 1; step <= 7; ++step) {
    series.add(step, record(step, step == 3 ? 100 : static_cast<double>(step)));
  }
  const Json json = series.json();
  EXPECT_EQ(json["x"]["step"], Json({2, 4, 6, 7}));
  EXPECT_EQ(json["series"]["loss"]["mean"], Json({1.5, 52.0, 5.5, 7.0}));
  EXPECT_EQ(json["series"]["loss"]["min"], Json({1.0, 4.0, 5.0, 7.0}));
  EXPECT_EQ(json["series"]["loss"]["max"], Json({2.0, 100.0, 6.0, 7.0}));
  EXPECT_FALSE(json["series"]["phase_seconds.head"].contains("max"));
  EXPECT_EQ(series.steps(), 7);
  EXPECT_EQ(series.last_step(), 7);
  EXPECT_EQ(series.last_tokens(), 70);
  EXPECT_DOUBLE_EQ(series.seconds(), 3.5);
}

TEST(StepSeries, AnyNumberOfStepsKeepsTheirMeanAndNeverExceedsTheRoom) {
  for (const int64_t steps : {5, 8, 9, 100, 1023, 1024, 1025}) {
    StepSeries series(8);
    for (int64_t step = 1; step <= steps; ++step) {
      series.add(step, record(step, 3));
    }
    const Json json = series.json();
    EXPECT_LE(json["x"]["step"].size(), 8) << steps;
    EXPECT_GE(json["x"]["step"].size(), std::min<int64_t>(steps, 5)) << steps;
    EXPECT_EQ(json["x"]["step"].back(), steps);
    for (const Json& mean : json["series"]["loss"]["mean"]) {
      EXPECT_EQ(mean, 3.0);
    }
  }
}

TEST(StepSeries, ValuesThatAreNotKnownAreNullAndDoNotCount) {
  StepSeries series(2);
  for (int64_t step = 1; step <= 4; ++step) {
    Json line = record(step, 2);
    line["loss"] = step == 3 ? Json(8.0) : Json(nullptr);
    line["skipped"] = step == 4;
    line["text"] = "no number";
    series.add(step, line);
  }
  const Json json = series.json();
  EXPECT_EQ(json["series"]["loss"]["mean"], Json({nullptr, 8.0}));
  EXPECT_EQ(json["series"]["loss"]["min"], Json({nullptr, 8.0}));
  EXPECT_EQ(json["series"]["skipped"]["max"], Json({0.0, 1.0}));
  EXPECT_FALSE(json["series"].contains("text"));
}

TEST(StepSeries, ANameThatBeginsLaterIsNullBefore) {
  StepSeries series(8);
  series.add(1, {{"step", 1}, {"a", 1}, {"c", 3}});
  series.add(2, {{"step", 2}, {"b", 2}, {"c", 3}, {"a", 1}});
  const Json json = series.json();
  EXPECT_EQ(json["series"]["b"]["mean"], Json({nullptr, 2.0}));
  EXPECT_EQ(json["series"]["a"]["mean"], Json({1.0, 1.0}));
  EXPECT_EQ(json["series"]["c"]["mean"], Json({3.0, 3.0}));
}

} // namespace
} // namespace distill::report
