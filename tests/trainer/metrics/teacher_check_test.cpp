#include "trainer/metrics/teacher_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace distill::metrics {
namespace {

// The step at which a teacher is found worse whose cross-entropy is larger by `gap` on average; 0: it never is. Batches
// differ by 0.5 nats, the difference of the two models on one batch by `noise`.
int64_t found_at(double gap, double noise, int64_t steps, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  TeacherCheck check;
  int64_t found = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const double student = 2 + 0.5 * normal(random);
    if (check.step(student, student + gap + noise * normal(random))) {
      EXPECT_EQ(found, 0) << "twice";
      found = step;
    }
  }
  return found;
}

TEST(TeacherCheck, AWorseTeacherIsFoundAfterEnoughSteps) {
  EXPECT_EQ(found_at(0.3, 0.05, 200), static_cast<int64_t>(TeacherCheck::kSteps));
  EXPECT_GE(found_at(0.5, 1.0, 2000), static_cast<int64_t>(TeacherCheck::kSteps));
  EXPECT_EQ(found_at(5, 0.05, static_cast<int64_t>(TeacherCheck::kSteps) - 1), 0);
}

TEST(TeacherCheck, NoiseIsNotAWorseTeacher) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(found_at(-0.1, 0.3, 5000, seed), 0) << seed; // an ordinary teacher, better by a little
    EXPECT_EQ(found_at(0, 0.1, 5000, seed), 0) << seed; // a student that has become as good
  }
  EXPECT_EQ(found_at(0.05, 0, 1000), 0) << "a small difference is no mistake of the user";
}

TEST(TeacherCheck, AStudentThatOvertakesItsTeacherIsFoundLater) {
  TeacherCheck check;
  int64_t found = 0;
  for (int64_t step = 1; step <= 1000 && found == 0; ++step) {
    const auto finding = check.step(step < 500 ? 4.0 : 1.0, 2.0);
    if (finding) {
      found = step;
      EXPECT_DOUBLE_EQ(finding->teacher_ce, 2.0);
      EXPECT_LT(finding->student_ce, 2.0);
    }
  }
  EXPECT_GE(found, 500);
  EXPECT_LE(found, 500 + static_cast<int64_t>(TeacherCheck::kSteps));
}

TEST(TeacherCheck, StepsWithoutNumbersDoNotCount) {
  TeacherCheck check;
  for (size_t step = 1; step < TeacherCheck::kSteps; ++step) {
    EXPECT_FALSE(check.step(1, 3));
    EXPECT_FALSE(check.step(std::nan(""), 3));
    EXPECT_FALSE(check.step(1, INFINITY));
  }
  EXPECT_TRUE(check.step(1, 3));
}

TEST(TeacherCheck, AnEvaluationOfEnoughTokensIsEnough) {
  constexpr int64_t kTokens = TeacherCheck::kTokens;
  TeacherCheck check;
  EXPECT_FALSE(check.evaluation(1, 3, kTokens - 1));
  EXPECT_FALSE(check.evaluation(3, 1, kTokens));
  EXPECT_FALSE(check.evaluation(1, 1.05, kTokens));
  EXPECT_FALSE(check.evaluation(std::nan(""), 3, kTokens));
  const auto finding = check.evaluation(1, 3, kTokens);
  ASSERT_TRUE(finding);
  EXPECT_FALSE(check.evaluation(1, 3, kTokens)) << "twice";
  const std::string text = describe(*finding, "data.eval");
  for (const char* part : {"data.eval", "3.0000", "1.0000", "chat template", "tokenizer", "damaged"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

} // namespace
} // namespace distill::metrics
