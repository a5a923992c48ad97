#include "data/base/problem_list.h"

#include <gtest/gtest.h>

#include <memory>

namespace distill::base {
namespace {

TEST(ProblemList, WithoutProblemsIsOk) {
  ProblemList problems;
  problems.add(absl::OkStatus());
  EXPECT_EQ(problems.take(absl::StatusOr<int>(3)), 3);
  EXPECT_TRUE(problems.empty());
  EXPECT_TRUE(problems.status().ok());
  EXPECT_TRUE(problems.status(absl::StatusCode::kDataLoss).ok());
}

TEST(ProblemList, ReportsAllProblemsInOrder) {
  ProblemList problems;
  problems.add("first");
  EXPECT_EQ(problems.take(absl::StatusOr<int>(absl::NotFoundError("second"))), std::nullopt);
  problems.add(absl::InternalError("third"));
  problems.add("fourth");
  EXPECT_EQ(problems.size(), 4);
  EXPECT_EQ(problems.status(absl::StatusCode::kDataLoss), absl::DataLossError("first\nsecond\nthird\nfourth"));
}

TEST(ProblemList, TheCodeIsThatOfTheLastStatus) {
  ProblemList problems;
  problems.add("text alone");
  EXPECT_EQ(problems.status().code(), absl::StatusCode::kInvalidArgument);
  problems.add(absl::NotFoundError("a"));
  problems.add(absl::DataLossError("b"));
  problems.add("text");
  EXPECT_EQ(problems.status().code(), absl::StatusCode::kDataLoss);
}

TEST(ProblemList, TakesValuesThatCannotBeCopied) {
  ProblemList problems;
  const auto taken = problems.take(absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(7)));
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(**taken, 7);
}

} // namespace
} // namespace distill::base
