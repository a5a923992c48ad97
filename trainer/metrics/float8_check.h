#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace distill::metrics {

// Notices a student that has come near its float8 teacher: the teacher's own error, measured before the run
// (trainer/float8_gate/gate.h), is then no longer small compared with the distance between the two.
class Float8Check {
 public:
  static constexpr size_t kSteps = 50; // of training whose mean is compared
  static constexpr double kFactor = 10; // the least ratio of the distance to the error

  // `error`: mean KL(teacher || float8 teacher), nats; 0: nothing is checked.
  explicit Float8Check(double error) : error_(error) {}

  // KL(p || q) of the next step, nats. The mean over the last kSteps steps, once: at the first step where it is below
  // kFactor times the error. Steps whose number is not finite are left out.
  std::optional<double> step(double forward_kl);

  double error() const {
    return error_;
  }

 private:
  double error_;
  std::deque<double> last_;
  bool found_ = false;
};

// A warning's text.
std::string describe_float8(double forward_kl, double error);

} // namespace distill::metrics
