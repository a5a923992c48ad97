#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace distill::metrics {

// Notices a teacher that is worse than the student on the data, which is what a chat template or tokenizer other than
// the teacher's, or a wrong or damaged teacher, looks like. Both cross-entropies are of the same tokens, so that what
// is hard about a batch cancels out in their difference.
class TeacherCheck {
 public:
  static constexpr size_t kSteps = 50; // of training that are compared
  static constexpr int64_t kTokens = 2000; // with a target that an evaluation must have
  static constexpr double kMargin = 0.1; // nats
  static constexpr double kStandardErrors = 3;

  struct Finding {
    double teacher_ce = 0; // means, nats
    double student_ce = 0;
  };

  // Checks the means of the next step. There is one finding at most: at the first step at which the teacher's mean over
  // the last kSteps steps is larger than the student's by more than kMargin, and by more than kStandardErrors of the
  // mean difference of a step. Steps whose numbers are not finite are left out.
  std::optional<Finding> step(double student_ce, double teacher_ce);

  // Checks the means of an evaluation over `tokens` tokens. There is one finding at most: at the first evaluation of at
  // least kTokens tokens whose teacher's mean is larger by more than kMargin.
  std::optional<Finding> evaluation(double student_ce, double teacher_ce, int64_t tokens);

 private:
  std::deque<Finding> last_;
  bool found_in_steps_ = false;
  bool found_in_evaluation_ = false;
};

// A warning's text. `where`: for instance "data.train".
std::string describe(const TeacherCheck::Finding& finding, const std::string& where);

} // namespace distill::metrics
