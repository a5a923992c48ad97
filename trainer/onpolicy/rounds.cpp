#include "trainer/onpolicy/rounds.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "data/base/status_macros.h"
#include "trainer/onpolicy/command_engine.h"

namespace distill::onpolicy {
namespace {

constexpr std::chrono::milliseconds kPoll{50};

std::string identity_of(const data::Dataset& data) {
  return RoundShards(data.shards()).identity();
}

// Of each completion the sum of its log-probabilities; NaN where there are none.
std::vector<double> logprob_sums(const std::vector<const Completion*>& completions) {
  std::vector<double> sums;
  for (const Completion* completion : completions) {
    const std::vector<double>& own = completion->logprobs;
    sums.push_back(own.empty() ? NAN : std::accumulate(own.begin(), own.end(), 0.0));
  }
  return sums;
}

// Whether an evaluation was due since `last` began, up to `step`.
bool evaluation_is_due(const config::EvalSection& eval, const checkpoint::RoundPosition& last, int64_t step) {
  if (!last.begun()) {
    return eval.at_start;
  }
  return eval.every > 0 && step / eval.every > last.first_step / eval.every;
}

} // namespace

Rounds::Rounds(
    const config::Config& config, RoundInputs inputs, const sharding::ModelShards& student, const sharding::Mesh& mesh,
    const std::string& parent_run)
    : config_(config),
      replays_(!parent_run.empty()),
      run_dir_(replays_ ? parent_run : config.run.dir),
      inputs_(std::move(inputs)),
      student_(student),
      mesh_(mesh) {
  if (mesh_.is_main() && !replays_) {
    engine_ = std::make_unique<CommandEngine>(config_.onpolicy, absl::StrCat(run_dir_, "/", kRoundsFolder));
  }
}

Rounds::~Rounds() {
  writer_.reset();
  if (engine_ != nullptr) {
    engine_.reset();
    if (!begun_ || config_.onpolicy.staleness == 0) { // else the next process goes on with them
      remove_student_weights(config_);
    }
  }
}

checkpoint::RoundPosition Rounds::position_after(const checkpoint::RoundPosition& last, int64_t step) const {
  checkpoint::RoundPosition next;
  next.number = last.number + 1;
  next.first_step = step;
  next.steps = std::min(config_.onpolicy.every, total_steps_ - step);
  next.sequences = config_.onpolicy_sequences();
  next.first_prompt = last.first_prompt + last.prompts;
  // The last round of a run may be shorter than the others.
  const int64_t all = config_.onpolicy_completions() / config_.onpolicy.samples;
  next.prompts = (all * next.steps + config_.onpolicy.every - 1) / config_.onpolicy.every;
  if (inputs_.held_out != nullptr && evaluation_is_due(config_.eval, last, step)) {
    next.held_out = std::min(config_.onpolicy.eval_completions, inputs_.held_out->prompts());
  }
  return next;
}

// Begins a round with the student after `step` steps: as it is now, or as it was when the weights were written.
absl::Status Rounds::start(const checkpoint::RoundPosition& position, int64_t step, const RoundHooks& hooks) {
  if (weights_step_ != step) {
    weights_step_ = -1;
    ASSIGN_OR_RETURN(weights_, write_student_weights(config_, student_, mesh_, step));
    weights_step_ = step;
  }
  absl::Status status = hooks.before_engine();
  RETURN_IF_ERROR(sharding::agree(mesh_, status));
  if (mesh_.is_main()) {
    written_ = false;
    writer_ = std::make_unique<RoundWriter>(config_, inputs_, *engine_, position, weights_);
    status = writer_->begin(hooks);
  }
  RETURN_IF_ERROR(sharding::agree(mesh_, status));
  begun_ = position;
  return absl::OkStatus();
}

// Waits until the engine has ended; false: a rank was asked to stop. The ranks exchange small numbers all the time, so
// that no collective waits for the engine.
absl::StatusOr<bool> Rounds::wait(const RoundHooks& hooks) {
  while (true) {
    poll();
    const absl::StatusOr<bool>& ended = written_;
    enum : int64_t {
      kStop,
      kEnded,
      kFailed,
      kCount
    };
    int64_t ranks[kCount] = {hooks.asked_to_stop() ? 1 : 0, ended.ok() && *ended ? 1 : 0, ended.ok() ? 0 : 1};
    if (mesh_.host != nullptr) {
      mesh_.host->all_reduce(at::from_blob(ranks, {kCount}, at::kLong));
    }
    if (ranks[kStop] > 0) {
      if (writer_ != nullptr) {
        writer_->stop();
      }
      return false;
    }
    if (ranks[kFailed] > 0) {
      return mesh_.is_main() ? ended.status() : absl::AbortedError("the engine failed; the message of rank 0 says how");
    }
    if (ranks[kEnded] > 0) {
      return true;
    }
    hooks.waits();
    std::this_thread::sleep_for(kPoll);
  }
}

absl::StatusOr<std::optional<Round>> Rounds::write(
    const checkpoint::RoundPosition& last, int64_t step, const RoundHooks& hooks) {
  const checkpoint::RoundPosition position = position_after(last, step);
  if (replays_) {
    ASSIGN_OR_RETURN(Round round, identified(position));
    return std::optional(std::move(round));
  }
  absl::Status status = begun_ != position ? begin(last, position, step, hooks) : absl::OkStatus();
  absl::StatusOr<bool> ended = status.ok() ? wait(hooks) : absl::StatusOr<bool>(status);
  status = sharding::agree(mesh_, hooks.after_engine()); // also where the engine failed: the state is saved next
  RETURN_IF_ERROR(ended.status());
  RETURN_IF_ERROR(status);
  if (!*ended) {
    return std::optional<Round>();
  }
  RETURN_IF_ERROR(sharding::agree(mesh_, mesh_.is_main() ? writer_->finish(hooks) : absl::OkStatus()));
  ASSIGN_OR_RETURN(Round round, identified(position));
  if (const int64_t read = position.steps * position.sequences; round.data->num_samples() > read) {
    hooks.warning(absl::StrFormat(
        "round %d: its completions fill %d sequences, of which its %d steps read %d: lower onpolicy.completions, or raise "
        "onpolicy.every or data.seq_len",
        position.number, round.data->num_samples(), position.steps, read));
  }
  round.weights_step = weights_step_;
  if (mesh_.is_main()) {
    round.engine_logprobs = logprob_sums(writer_->completions());
  }
  writer_.reset();
  begun_.reset();
  const int64_t end = position.first_step + position.steps;
  if (config_.onpolicy.staleness > 0 && end < total_steps_) {
    RETURN_IF_ERROR(start(position_after(position, end), step, hooks));
  }
  return std::optional(std::move(round));
}

absl::StatusOr<nlohmann::ordered_json> Rounds::judge(
    const Round& round, const std::vector<JudgedCompletion>& completions, const nlohmann::ordered_json& more) const {
  const RoundFolder folder(run_dir_, round.position.number);
  ASSIGN_OR_RETURN(
      const nlohmann::ordered_json judged,
      judged_json(completions, config_.onpolicy.max_new_tokens, RoundShards(round.data->shards()), inputs_.text.get()));
  RETURN_IF_ERROR(folder.add_judgement(judged, more));
  ASSIGN_OR_RETURN(RoundFolder::Contents contents, folder.read_complete());
  return std::move(contents.result);
}

void Rounds::reject(const checkpoint::RoundPosition& position) const {
  if (mesh_.is_main()) {
    RoundFolder(run_dir_, position.number).set_aside().IgnoreError();
  }
}

absl::StatusOr<Round> Rounds::open(const checkpoint::RoundPosition& position) const {
  const RoundFolder folder(run_dir_, position.number);
  ASSIGN_OR_RETURN(
      const auto data,
      open_round_data(config_, inputs_, folder.path(), position.number, position.steps * position.sequences));
  Round round{position, data};
  const std::string held_out = folder.file(kHeldOutFolder);
  if (position.held_out > 0 && !round_shard_paths(held_out).empty()) {
    ASSIGN_OR_RETURN(round.held_out, open_held_out_data(config_, inputs_, held_out));
  }
  return round;
}

// Opens a round and sets its identity, which is the same on all ranks.
absl::StatusOr<Round> Rounds::identified(const checkpoint::RoundPosition& position) const {
  auto round = open(position);
  RETURN_IF_ERROR(sharding::agree(mesh_, round.status()));
  round->position.data = identity_of(*round->data);
  if (mesh_.host != nullptr) {
    RETURN_IF_ERROR(sharding::check_equal_on_all_ranks(mesh_, "the round's token shard", round->position.data));
  }
  return round;
}

absl::StatusOr<Round> Rounds::reopen(const checkpoint::RoundPosition& position) const {
  auto round = open(position);
  const std::string folder = RoundFolder(run_dir_, position.number).path();
  const std::string found = round.ok() ? identity_of(*round->data) : std::string(round.status().message());
  absl::Status status;
  if (found != position.data) {
    status = absl::FailedPreconditionError(absl::StrFormat(
        "%s: expected the round in which the checkpoint was saved, %s, found %s; --resume-from a checkpoint of at most "
        "%d steps writes it again",
        folder, position.data, found, position.first_step));
  } else if (
      position.sequences % config_.train.micro_batch_size != 0 ||
      position.sequences > config_.train.global_batch_size) {
    status = absl::FailedPreconditionError(absl::StrFormat(
        "%s: the checkpoint was saved in this round, which has %d sequences in each step: expected a "
        "train.micro_batch_size that divides this and a train.global_batch_size that is not below it, found %d and %d; "
        "these keys may change between two rounds, the next of which begins after step %d",
        folder, position.sequences, config_.train.micro_batch_size, config_.train.global_batch_size,
        position.first_step + position.steps));
  }
  RETURN_IF_ERROR(sharding::agree(mesh_, status));
  return *std::move(round);
}

// The weights with which an earlier process began the round, those after `step` steps, if the round can go on with
// them: it is complete, or they are still where they were written.
std::optional<StudentWeights> Rounds::weights_of(const checkpoint::RoundPosition& position, int64_t step) const {
  const RoundFolder folder(run_dir_, position.number);
  const auto request = folder.read_request();
  const std::string version = request.ok() ? request->value("weight_version", std::string()) : "";
  const bool usable = absl::StartsWith(version, absl::StrCat("step-", step, "-")) &&
      (folder.read_complete().ok() || is_written(config_, version));
  return usable ? std::optional(StudentWeights{weights_folder(config_), version}) : std::nullopt;
}

// Begins the round after `last` with the student after `step` steps. With onpolicy.staleness 1 an earlier process has
// begun it together with `last`, and it goes on with that student's weights.
absl::Status Rounds::begin(
    const checkpoint::RoundPosition& last, const checkpoint::RoundPosition& position, int64_t step,
    const RoundHooks& hooks) {
  if (config_.onpolicy.staleness == 0 || !last.begun()) {
    return start(position, step, hooks);
  }
  std::optional<StudentWeights> there;
  if (mesh_.is_main()) {
    there = weights_of(position, last.first_step);
  }
  if (sharding::sum_over_ranks(mesh_, there ? 1 : 0) == 0) {
    hooks.message(absl::StrFormat(
        "round %d is written by the student after %d steps: the weights after %d, with which it would have been begun, "
        "are not there",
        position.number, step, last.first_step));
    return start(position, step, hooks);
  }
  weights_ = there.value_or(StudentWeights{});
  weights_step_ = last.first_step;
  return start(position, weights_step_, hooks);
}

absl::Status Rounds::write_ahead_again(
    const checkpoint::RoundPosition& position, int64_t step, const RoundHooks& hooks) {
  const int64_t end = position.first_step + position.steps;
  return !replays_ && config_.onpolicy.staleness > 0 && end < total_steps_
      ? begin(position, position_after(position, end), step, hooks)
      : absl::OkStatus();
}

} // namespace distill::onpolicy
