#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>

#include "trainer/onpolicy/judgement.h"
#include "trainer/onpolicy/round_writer.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::onpolicy {

// A round that can be trained on.
struct Round {
  checkpoint::RoundPosition position;
  std::shared_ptr<const data::Dataset> data;
  // Of the completion of each document (RoundShards), the sum of what the engine gave; NaN: nothing. On rank 0, of a
  // round that was written; else empty.
  std::vector<double> engine_logprobs = {};
  std::shared_ptr<const data::Dataset> held_out = nullptr; // completions of held-out prompts; null: there are none
  int64_t weights_step = -1; // it was written by the student after this many steps; -1: not known
};

// The rounds of a run: the student's weights for the engine, what the engine writes, and the token shard that is made
// of it, in the run folder. All ranks call these functions together; rank 0 runs the engine, and the others wait for it
// without a limit of their own. With onpolicy.staleness 1 the engine writes the next round while one is trained on.
class Rounds {
 public:
  // `config`, `student` and `mesh` outlive this. `parent_run`: of a replay, the run folder whose rounds are read;
  // nothing is written then. Empty: the rounds are in run.dir.
  Rounds(
      const config::Config& config, RoundInputs inputs, const sharding::ModelShards& student,
      const sharding::Mesh& mesh, const std::string& parent_run = "");
  // Ends the engine, and removes the weights that were written for it, unless the next round still needs them.
  ~Rounds();

  // The number of the run's steps, before the first round.
  void set_length(int64_t total_steps) {
    total_steps_ = total_steps;
  }

  // Writes the round after `last`, which begins with the student as it is now, after `step` steps; or goes on with it
  // where an earlier process was killed: completions that are there are kept if they are of the same student. nullopt:
  // a rank was asked to stop. An error says what the engine printed last, and all good completions stay for the next
  // attempt.
  absl::StatusOr<std::optional<Round>> write(
      const checkpoint::RoundPosition& last, int64_t step, const RoundHooks& hooks);
  // Between two steps, with onpolicy.staleness 1: lets the round that is written meanwhile go on to its next command.
  // What fails is an error of the write() that waits for it.
  void poll() {
    written_ = written_.ok() && !*written_ && writer_ != nullptr ? writer_->ended() : written_;
  }
  // On rank 0: stores what student and teacher say of a round that write() has returned, merges `more` into its result,
  // and returns that.
  absl::StatusOr<nlohmann::ordered_json> judge(
      const Round& round, const std::vector<JudgedCompletion>& completions, const nlohmann::ordered_json& more) const;
  // Sets aside a round that write() has returned and that must not be learned, so that it is written anew.
  void reject(const checkpoint::RoundPosition& position) const;

  // Opens the round in which a checkpoint was saved. FailedPrecondition: it is not there any more, or another one is.
  absl::StatusOr<Round> reopen(const checkpoint::RoundPosition& position) const;
  // With onpolicy.staleness 1, before a run goes on in a round after `step` steps: lets the engine write the round
  // after it, with the weights of an earlier process where these are still there, else with those of now.
  absl::Status write_ahead_again(const checkpoint::RoundPosition& position, int64_t step, const RoundHooks& hooks);

 private:
  checkpoint::RoundPosition position_after(const checkpoint::RoundPosition& last, int64_t step) const;
  absl::Status start(const checkpoint::RoundPosition& position, int64_t step, const RoundHooks& hooks);
  absl::Status begin(
      const checkpoint::RoundPosition& last, const checkpoint::RoundPosition& position, int64_t step,
      const RoundHooks& hooks);
  absl::StatusOr<bool> wait(const RoundHooks& hooks);
  absl::StatusOr<Round> open(const checkpoint::RoundPosition& position) const;
  absl::StatusOr<Round> identified(const checkpoint::RoundPosition& position) const;
  std::optional<StudentWeights> weights_of(const checkpoint::RoundPosition& position, int64_t step) const;

  const config::Config& config_;
  bool replays_;
  std::string run_dir_;
  RoundInputs inputs_;
  const sharding::ModelShards& student_;
  const sharding::Mesh& mesh_;
  int64_t total_steps_ = 0;
  // The weights that are written, and the round that is. Of rank 0: the engine, and the writer.
  StudentWeights weights_;
  int64_t weights_step_ = -1; // -1: none
  std::optional<checkpoint::RoundPosition> begun_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RoundWriter> writer_; // after the engine, which it uses
  absl::StatusOr<bool> written_ = false; // of this writer: ended(), as far as it was asked
};

} // namespace distill::onpolicy
