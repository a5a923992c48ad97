#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/checkpoint/state.h"
#include "trainer/onpolicy/engine.h"
#include "trainer/onpolicy/retokenizer.h"
#include "trainer/onpolicy/round_data.h"
#include "trainer/onpolicy/round_folder.h"
#include "trainer/onpolicy/student_weights.h"

namespace distill::onpolicy {

struct RoundHooks {
  std::function<bool()> asked_to_stop; // whether this rank was asked to stop
  std::function<void()> waits; // called again and again while the engine writes
  // Called before the engine begins and after it has ended, on all ranks. With onpolicy.staleness 0 training waits in
  // between.
  std::function<absl::Status()> before_engine = [] { return absl::OkStatus(); };
  std::function<absl::Status()> after_engine = [] { return absl::OkStatus(); };
  std::function<void(const std::string&)> message, warning; // lines for the log
};

// One round that is being written, on rank 0: its folder, what is still missing, the engine's job, the teacher's tokens
// of what it has written, the token shard.
class RoundWriter {
 public:
  // All but the position and the weights outlive this. `engine` has no other job meanwhile.
  RoundWriter(
      const config::Config& config, const RoundInputs& inputs, Engine& engine,
      const checkpoint::RoundPosition& position, StudentWeights weights);

  // Goes on with the round's folder if it is of the same request, keeps its good completions, and lets the engine write
  // the others.
  absl::Status begin(const RoundHooks& hooks);
  // Whether all commands have ended; when the engine has, onpolicy.retokenize is started, if the round needs it.
  // DeadlineExceeded: one takes longer than onpolicy.timeout_s, and was killed.
  absl::StatusOr<bool> ended();
  // Ends the commands; what they have written stays as it is.
  void stop();
  // Call when all have ended: checks the completions and completes the round.
  absl::Status finish(const RoundHooks& hooks);

  // Those that are trained on, in the order of the round's documents. Call after finish().
  std::vector<const Completion*> completions() const;

 private:
  nlohmann::ordered_json make_request() const;
  CompletionRules rules() const;
  absl::Status collect();
  absl::Status keep_completions() const;
  absl::Status start_engine();
  absl::Status start_retokenizer();
  absl::StatusOr<bool> engine_ended();
  absl::StatusOr<bool> retokenizer_ended();
  nlohmann::ordered_json add_left_off(const RoundHooks& hooks) const;
  void check_missing();
  int64_t training_completions() const {
    return position_.prompts * config_.onpolicy.samples;
  }
  void take_held_out();
  absl::Status write_held_out(nlohmann::ordered_json& result, const RoundHooks& hooks) const;

  const config::Config& config_;
  const RoundInputs& inputs_;
  Engine& engine_;
  checkpoint::RoundPosition position_;
  StudentWeights weights_;
  RoundFolder folder_;
  nlohmann::ordered_json request_;
  std::vector<Request> requests_;
  std::map<int64_t, Completion> completions_; // the good ones
  std::map<int64_t, Completion> held_out_; // those of held-out prompts, from finish() on
  std::vector<std::string> bad_; // lines of the engine that are not used, and why
  bool complete_ = false; // an earlier process has finished it
  enum class Running {
    kNothing,
    kEngine,
    kRetokenizer
  };
  Running running_ = Running::kNothing;
  EngineJob job_;
  std::chrono::steady_clock::time_point started_; // of the engine
  double engine_seconds_ = 0;
  Retokenizer retokenizer_;
};

} // namespace distill::onpolicy
