#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainer/evaluator.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/onpolicy/rounds.h"
#include "trainer/run_folder/journal.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/micro_batch.h"

namespace distill::trainer {

// The first sequences of a round under the student that is about to learn from them, and under the teacher.
struct RoundCheck {
  metrics::LossMeans means; // over their on-policy tokens
  std::optional<double> dropped_mass = {}; // the teacher's, where it has a limit (judge_dropped_mass())
  int64_t teacher = 0; // of these sequences, the number
  double engine_logprob = 0; // of these tokens, as the engine gave it, nats, mean; NaN: it gave none
  double own_logprob = 0; // as the student computes it
  int64_t most = 0; // onpolicy.max_new_tokens
  double seconds = 0; // that the check took
  // On rank 0 alone: their completions token by token, and the means of these by position.
  std::vector<onpolicy::JudgedCompletion> completions = {};
  std::vector<onpolicy::PositionMeans> positions = {};
  std::optional<data::AlignmentStats> alignment = {}; // of the round's documents, with a teacher by bytes
  std::optional<metrics::LossMeans> held_out = {}; // over all completions of held-out prompts; nullopt: there are none

  // For the log.
  std::string line() const;
  // The same of the held-out completions; empty without them.
  std::string held_out_line() const;
  // What round.json and metrics.jsonl get; null where a number is not known.
  nlohmann::ordered_json json() const;
  // FailedPrecondition with both values: they differ by more than `limit` (0: no limit). With the student's own weights
  // and texts, they differ by rounding alone.
  absl::Status verdict(double limit) const;
};

// One micro-batch of the round on each rank, and all completions of held-out prompts, forward only. All ranks call it
// together; `engine_logprob` is known on rank 0 alone. nullopt: a rank was asked to stop.
absl::StatusOr<std::optional<RoundCheck>> check_round(
    const config::Config& config, MicroBatchRunner& micro, const onpolicy::Round& round, const sharding::Mesh& mesh,
    const EvaluationHooks& hooks);

// On rank 0: what the check has found goes to the round's folder, metrics.jsonl and, where it means trouble, the log.
absl::Status record_check(
    const onpolicy::Rounds& rounds, const onpolicy::Round& round, const RoundCheck& check, RunJournal& journal);

} // namespace distill::trainer
