#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/checkpoint/state.h"
#include "trainer/onpolicy/engine.h"
#include "trainer/onpolicy/round_data.h"
#include "trainer/onpolicy/round_folder.h"
#include "trainer/onpolicy/student_weights.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::onpolicy {

// A round that can be trained on.
struct Round {
  checkpoint::RoundPosition position;
  std::shared_ptr<const data::Dataset> data;
  // Of each document's completion, the sum of what the engine gave; NaN: nothing. On rank 0, of a round that was
  // written; else empty.
  std::vector<double> engine_logprobs = {};
};

struct RoundHooks {
  std::function<bool()> asked_to_stop; // whether this rank was asked to stop
  std::function<void()> waits; // called again and again while the engine writes
  std::function<void(const std::string&)> message, warning; // lines for the log
};

// The rounds of a run: the student's weights for the engine, what the engine writes, and the token shard that is made
// of it, in the run folder. All ranks call these functions together; rank 0 runs the engine, and the others wait for it
// without a limit of their own.
class Rounds {
 public:
  // `config` and `mesh` outlive this. `parent_run`: of a replay, the run folder whose rounds are read; nothing is
  // written then. Empty: the rounds are in run.dir.
  Rounds(
      const config::Config& config, RoundInputs inputs, const sharding::Mesh& mesh, const std::string& parent_run = "");
  ~Rounds(); // ends the engine, and removes the weights that were written for it

  // The position of the round after `last`, which begins after `step` of `total_steps` steps. Its data are not known
  // yet.
  checkpoint::RoundPosition next_position(
      const checkpoint::RoundPosition& last, int64_t step, int64_t total_steps) const;

  // Writes the round that begins with the student as it is now, or goes on with it where an earlier process was killed:
  // completions that are there are kept if they are of the same student. nullopt: a rank was asked to stop. An error
  // says what the engine printed last, and all good completions stay for the next attempt.
  absl::StatusOr<std::optional<Round>> write(
      checkpoint::RoundPosition position, const sharding::ModelShards& student, const RoundHooks& hooks);

  // Sets aside a round that write() has returned and that must not be learned, so that it is written anew.
  void reject(const checkpoint::RoundPosition& position) const;

  // Opens the round in which a checkpoint was saved. FailedPrecondition: it is not there any more, or another one is.
  absl::StatusOr<Round> reopen(const checkpoint::RoundPosition& position) const;

 private:
  // A round that rank 0 is writing.
  struct Work;

  nlohmann::ordered_json request_of(const checkpoint::RoundPosition& position, const std::string& version) const;
  CompletionRules rules_of(const Work& work) const;
  absl::StatusOr<Round> identified(const checkpoint::RoundPosition& position) const;
  absl::Status begin(Work& work, const RoundHooks& hooks);
  absl::Status collect(Work& work) const;
  absl::Status start_engine(Work& work);
  absl::StatusOr<bool> engine_ended(Work& work);
  absl::StatusOr<bool> wait(Work& work, const RoundHooks& hooks);
  absl::Status finish(Work& work, const RoundHooks& hooks) const;
  void check_missing(Work& work) const;
  absl::StatusOr<Round> open(const checkpoint::RoundPosition& position) const;

  const config::Config& config_;
  bool replays_;
  std::string run_dir_;
  RoundInputs inputs_;
  const sharding::Mesh& mesh_;
  std::unique_ptr<Engine> engine_; // of rank 0; null on the others
};

} // namespace distill::onpolicy
