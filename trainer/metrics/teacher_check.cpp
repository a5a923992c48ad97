#include "trainer/metrics/teacher_check.h"

#include <absl/strings/str_format.h>

#include <cmath>

namespace distill::metrics {

std::optional<TeacherCheck::Finding> TeacherCheck::step(double student_ce, double teacher_ce) {
  if (found_in_steps_ || !std::isfinite(student_ce) || !std::isfinite(teacher_ce)) {
    return std::nullopt;
  }
  last_.push_back({teacher_ce, student_ce});
  if (last_.size() < kSteps) {
    return std::nullopt;
  }
  if (last_.size() > kSteps) {
    last_.pop_front();
  }
  constexpr auto kCount = static_cast<double>(kSteps);
  Finding mean;
  for (const Finding& one : last_) {
    mean.teacher_ce += one.teacher_ce / kCount;
    mean.student_ce += one.student_ce / kCount;
  }
  const double difference = mean.teacher_ce - mean.student_ce;
  double variance = 0;
  for (const Finding& one : last_) {
    const double deviation = one.teacher_ce - one.student_ce - difference;
    variance += deviation * deviation / (kCount - 1);
  }
  found_in_steps_ = difference > kMargin && difference > kStandardErrors * std::sqrt(variance / kCount);
  return found_in_steps_ ? std::optional<Finding>(mean) : std::nullopt;
}

std::optional<TeacherCheck::Finding> TeacherCheck::evaluation(double student_ce, double teacher_ce, int64_t tokens) {
  const bool known = std::isfinite(student_ce) && std::isfinite(teacher_ce);
  if (found_in_evaluation_ || tokens < kTokens || !known || teacher_ce - student_ce <= kMargin) {
    return std::nullopt;
  }
  found_in_evaluation_ = true;
  return Finding{teacher_ce, student_ce};
}

std::string describe(const TeacherCheck::Finding& finding, const std::string& where) {
  return absl::StrFormat(
      "the teacher is worse than the student on %s: its cross-entropy on the labels is %.4f nats, the student's %.4f; "
      "likely causes: the data have another chat template or another tokenizer than the teacher, the teacher is the "
      "wrong model, or its weights are damaged; a student that was trained on these samples before may also be better",
      where, finding.teacher_ce, finding.student_ce);
}

} // namespace distill::metrics
