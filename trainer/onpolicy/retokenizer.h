#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/launch/supervised_process.h"
#include "trainer/onpolicy/round_data.h"
#include "trainer/onpolicy/round_folder.h"

namespace distill::onpolicy {

// onpolicy.retokenize: one run of a shell command writes the completions of a round in the tokens of the teachers that
// have a tokenizer of their own (teacher_tokens.h). Used by rank 0 alone. No process of the command outlives this.
class Retokenizer {
 public:
  // All outlive this.
  Retokenizer(const config::Config& config, const RoundInputs& inputs, const RoundFolder& folder)
      : config_(config), inputs_(inputs), folder_(folder) {}

  // Starts the command for the completions that need it. false: there are none.
  absl::StatusOr<bool> start(
      const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, int64_t round);
  // true: the command has ended well. An error says what it printed last. DeadlineExceeded: it takes longer than
  // onpolicy.timeout_s, and was killed.
  absl::StatusOr<bool> poll();
  // Call once after poll() has returned true: read_teacher_tokens() of what the command has written.
  absl::Status finish(
      const std::vector<Request>& requests, std::map<int64_t, Completion>& completions, std::vector<std::string>& bad);
  void stop() {
    process_.reset();
  }
  double seconds() const { // that the command took, and the reading of what it wrote
    return seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const config::Config& config_;
  const RoundInputs& inputs_;
  const RoundFolder& folder_;
  std::unique_ptr<launch::SupervisedProcess> process_; // null: it does not run
  int64_t round_ = 0;
  Clock::time_point started_;
  double seconds_ = 0;
};

} // namespace distill::onpolicy
