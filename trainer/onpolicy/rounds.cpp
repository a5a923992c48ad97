#include "trainer/onpolicy/rounds.h"

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/onpolicy/command_engine.h"
#include "trainer/onpolicy/round_stats.h"

namespace distill::onpolicy {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPoll{50};
constexpr size_t kShownProblems = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string first_problems(const std::vector<std::string>& problems) {
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    absl::StrAppend(&text, "\n  ", problems[i]);
  }
  return problems.size() > kShownProblems ? absl::StrCat(text, "\n  and ", problems.size() - kShownProblems, " more")
                                          : text;
}

std::string identity_of(const data::Dataset& data) {
  base::Digest hash;
  std::copy_n(data.shards().front()->header().header_hash, hash.size(), hash.begin());
  return "sha256 " + base::hex(hash);
}

} // namespace

struct Rounds::Work {
  checkpoint::RoundPosition position;
  StudentWeights weights;
  double weights_seconds = 0;
  RoundFolder folder;
  Json request;
  std::vector<Request> requests;
  std::map<int64_t, Completion> completions; // the good ones
  std::vector<std::string> bad; // lines of the engine that are not used, and why
  bool complete = false; // an earlier process has finished it
  bool running = false; // the engine writes
  EngineJob job;
  Clock::time_point started = Clock::now(); // of the engine
  double engine_seconds = 0;
};

Rounds::Rounds(
    const config::Config& config, RoundInputs inputs, const sharding::Mesh& mesh, const std::string& parent_run)
    : config_(config),
      replays_(!parent_run.empty()),
      run_dir_(replays_ ? parent_run : config.run.dir),
      inputs_(std::move(inputs)),
      mesh_(mesh) {
  if (mesh_.is_main() && !replays_) {
    engine_ = std::make_unique<CommandEngine>(config_.onpolicy);
  }
}

Rounds::~Rounds() {
  if (engine_ != nullptr) {
    engine_.reset();
    remove_student_weights(config_);
  }
}

checkpoint::RoundPosition Rounds::next_position(
    const checkpoint::RoundPosition& last, int64_t step, int64_t total_steps) const {
  checkpoint::RoundPosition next;
  next.number = last.number + 1;
  next.first_step = step;
  next.steps = std::min(config_.onpolicy.every, total_steps - step);
  next.sequences = config_.onpolicy_sequences();
  next.first_prompt = last.first_prompt + last.prompts;
  // The last round of a run may be shorter than the others.
  const int64_t all = config_.onpolicy_completions() / config_.onpolicy.samples;
  next.prompts = (all * next.steps + config_.onpolicy.every - 1) / config_.onpolicy.every;
  return next;
}

Json Rounds::request_of(const checkpoint::RoundPosition& position, const std::string& version) const {
  const config::OnPolicySection& own = config_.onpolicy;
  return {
      {"round", position.number},
      {"first_step", position.first_step},
      {"steps", position.steps},
      {"sequences", position.sequences},
      {"first_prompt", position.first_prompt},
      {"prompts", position.prompts},
      {"samples", own.samples},
      {"prompts_sha256", base::hex(inputs_.prompts->fingerprint())},
      {"weight_version", version},
      {"max_new_tokens", own.max_new_tokens},
      {"temperature", own.temperature},
      {"top_p", own.top_p},
      {"stop", own.stop},
      {"seed", own.seed}};
}

CompletionRules Rounds::rules_of(const Work& work) const {
  return {
      work.requests,
      config_.onpolicy.max_new_tokens,
      static_cast<int64_t>(inputs_.prompts->header().vocab_size),
      inputs_.limits.documents,
      inputs_.end_ids,
      work.weights.version};
}

// Moves the good completions of the engine's output to kCompletionsFile. Whenever it is interrupted, the next call
// finds what is good in the two files.
absl::Status Rounds::collect(Work& work) const {
  const std::string kept = work.folder.file(kCompletionsFile), output = work.folder.file(kOutputFile);
  const CompletionRules rules = rules_of(work);
  if (auto read = read_completions(kept, rules); read.ok()) {
    work.completions = std::move(read->completions);
  }
  auto fresh = read_completions(output, rules);
  if (!fresh.ok()) {
    return absl::OkStatus(); // the engine has written nothing
  }
  work.bad = std::move(fresh->bad);
  work.completions.merge(std::move(fresh->completions));
  std::string lines;
  for (const auto& [id, completion] : work.completions) {
    lines += completion_line(work.requests[static_cast<size_t>(id)], completion, work.weights.version);
  }
  RETURN_IF_ERROR(base::replace_file(kept, lines));
  std::error_code ignored;
  std::filesystem::remove(output, ignored);
  return absl::OkStatus();
}

absl::Status Rounds::begin(Work& work, const RoundHooks& hooks) {
  const checkpoint::RoundPosition& position = work.position;
  work.request = request_of(position, work.weights.version);
  std::string set_aside;
  RETURN_IF_ERROR(work.folder.begin(work.request, set_aside));
  if (!set_aside.empty()) {
    hooks.message(absl::StrFormat(
        "round %d is written anew: what was there is of other weights or settings, and is now %s", position.number,
        set_aside));
  }
  work.complete = work.folder.read_complete().ok();
  ASSIGN_OR_RETURN(
      work.requests,
      round_requests(
          config_.onpolicy, *inputs_.prompts, position.number, position.first_prompt,
          position.prompts * config_.onpolicy.samples));
  RETURN_IF_ERROR(collect(work));
  work.bad.clear(); // they are asked for again
  if (work.complete) {
    hooks.message(absl::StrFormat("round %d is there, by the same weights, and is used again", position.number));
    return absl::OkStatus();
  }
  if (!work.completions.empty()) {
    hooks.message(absl::StrFormat(
        "round %d: %d of %d completions are there already", position.number, work.completions.size(),
        work.requests.size()));
  }
  return work.completions.size() < work.requests.size() ? start_engine(work) : absl::OkStatus();
}

absl::Status Rounds::start_engine(Work& work) {
  std::vector<const Request*> missing;
  for (const Request& request : work.requests) {
    if (!work.completions.contains(request.id)) {
      missing.push_back(&request);
    }
  }
  const config::OnPolicySection& own = config_.onpolicy;
  const Sampling sampling{own.max_new_tokens, own.temperature, own.top_p, own.stop, inputs_.end_ids};
  std::error_code ignored;
  const auto absolute = [&](const char* name) {
    return std::filesystem::absolute(work.folder.file(name), ignored).lexically_normal().string();
  };
  work.job = {work.position.number,    work.weights.folder,   work.weights.version,
              absolute(kRequestsFile), absolute(kOutputFile), absolute(kLogFile)};
  RETURN_IF_ERROR(base::replace_file(work.job.requests, request_lines(missing, sampling, work.weights.version)));
  work.started = Clock::now();
  RETURN_IF_ERROR(engine_->start(work.job));
  work.running = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> Rounds::engine_ended(Work& work) {
  if (!work.running) {
    return true;
  }
  ASSIGN_OR_RETURN(const bool ended, engine_->poll());
  if (!ended && seconds_since(work.started) > static_cast<double>(config_.onpolicy.timeout_s)) {
    engine_->stop();
    return absl::DeadlineExceededError(absl::StrFormat(
        "onpolicy.timeout_s: the engine has not ended within %d s in round %d, and was killed; %s",
        config_.onpolicy.timeout_s, work.position.number, last_output(work.job)));
  }
  return ended;
}

// Waits until the engine has ended; false: a rank was asked to stop. The ranks exchange small numbers all the time, so
// that no collective waits for the engine.
absl::StatusOr<bool> Rounds::wait(Work& work, const RoundHooks& hooks) {
  while (true) {
    const absl::StatusOr<bool> ended = mesh_.is_main() ? engine_ended(work) : absl::StatusOr<bool>(false);
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
    if (ranks[kFailed] > 0 && ranks[kStop] == 0) {
      return mesh_.is_main() ? ended.status() : absl::AbortedError("the engine failed; the message of rank 0 says how");
    }
    if (ranks[kStop] > 0) {
      if (engine_ != nullptr) {
        engine_->stop();
      }
      return false;
    }
    if (ranks[kEnded] > 0) {
      work.engine_seconds = work.running ? seconds_since(work.started) : 0;
      return true;
    }
    hooks.waits();
    std::this_thread::sleep_for(kPoll);
  }
}

// Adds a line for the completions that are missing without a bad line of their own.
void Rounds::check_missing(Work& work) const {
  const auto missing = static_cast<int64_t>(work.requests.size() - work.completions.size());
  const auto bad = static_cast<int64_t>(work.bad.size());
  if (missing > bad) {
    work.bad.push_back(absl::StrFormat("%d prompts have no completion at all", missing - bad));
  }
}

absl::Status Rounds::finish(Work& work, const RoundHooks& hooks) const {
  if (work.complete) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(collect(work));
  const size_t wanted = work.requests.size(), missing = wanted - work.completions.size();
  check_missing(work);
  const std::string counts = absl::StrFormat(
      "round %d: %d of %d completions are missing or cannot be used", work.position.number, missing, wanted);
  if (static_cast<double>(missing) > config_.onpolicy.max_bad * static_cast<double>(wanted) ||
      work.completions.empty()) {
    return absl::AbortedError(absl::StrCat(
        counts, ", more than onpolicy.max_bad, ", config_.onpolicy.max_bad, ":", first_problems(work.bad),
        "\nthe engine: ", last_output(work.job)));
  }
  if (missing > 0) {
    hooks.warning(absl::StrCat(counts, ", and are left out:", first_problems(work.bad)));
  }
  const Clock::time_point began = Clock::now();
  RETURN_IF_ERROR(
      write_round_shard(work.folder.file(kShardFile), work.requests, work.completions, inputs_.prompts->header()));
  const double shard_seconds = seconds_since(began);
  const RoundStats stats = round_stats(work.completions);
  Json result = stats_json(stats);
  result["left_out"] = missing;
  result["seconds"] = {{"weights", work.weights_seconds}, {"engine", work.engine_seconds}, {"shard", shard_seconds}};
  RETURN_IF_ERROR(work.folder.complete(work.request, result));
  const std::string round = absl::StrFormat("round %d: ", work.position.number);
  hooks.message(absl::StrFormat(
      "%s%s, by the weights %s (%.1f s to write them, %.1f s for the engine, %.1f s for the shard)", round,
      stats_line(stats), work.weights.version, work.weights_seconds, work.engine_seconds, shard_seconds));
  for (const std::string& warning : stats_warnings(stats)) {
    hooks.warning(round + warning);
  }
  if (config_.onpolicy.keep_rounds > 0) {
    const auto checkpoints = checkpoint::complete_checkpoints(run_dir_);
    remove_old_rounds(
        run_dir_, work.position.number, config_.onpolicy.keep_rounds,
        checkpoints.empty() ? 0 : checkpoints.begin()->first);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Round>> Rounds::write(
    checkpoint::RoundPosition position, const sharding::ModelShards& student, const RoundHooks& hooks) {
  if (replays_) {
    ASSIGN_OR_RETURN(Round round, identified(position));
    return std::optional(std::move(round));
  }
  Work work{.position = position, .folder = RoundFolder(run_dir_, position.number)};
  const Clock::time_point began = Clock::now();
  ASSIGN_OR_RETURN(work.weights, write_student_weights(config_, student, mesh_, position.first_step));
  work.weights_seconds = seconds_since(began);
  RETURN_IF_ERROR(sharding::agree(mesh_, mesh_.is_main() ? begin(work, hooks) : absl::OkStatus()));
  ASSIGN_OR_RETURN(const bool ended, wait(work, hooks));
  if (!ended) {
    return std::optional<Round>();
  }
  RETURN_IF_ERROR(sharding::agree(mesh_, mesh_.is_main() ? finish(work, hooks) : absl::OkStatus()));
  ASSIGN_OR_RETURN(Round round, identified(position));
  if (const int64_t read = position.steps * position.sequences; round.data->num_samples() > read) {
    hooks.warning(absl::StrFormat(
        "round %d: its completions fill %d sequences, of which its %d steps read %d: lower onpolicy.completions, or raise "
        "onpolicy.every or data.seq_len",
        position.number, round.data->num_samples(), position.steps, read));
  }
  for (const auto& [id, completion] : work.completions) { // the documents are in their order
    round.engine_logprobs.push_back(
        completion.logprobs.empty() ? NAN
                                    : std::accumulate(completion.logprobs.begin(), completion.logprobs.end(), 0.0));
  }
  return std::optional(std::move(round));
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
      open_round_data(config_, inputs_, folder.file(kShardFile), position.number, position.steps * position.sequences));
  return Round{position, data};
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

} // namespace distill::onpolicy
