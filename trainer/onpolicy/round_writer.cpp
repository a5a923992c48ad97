#include "trainer/onpolicy/round_writer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <filesystem>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/onpolicy/command_engine.h"
#include "trainer/onpolicy/round_stats.h"
#include "trainer/onpolicy/teacher_tokens.h"

namespace distill::onpolicy {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

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

} // namespace

RoundWriter::RoundWriter(
    const config::Config& config, const RoundInputs& inputs, Engine& engine, const checkpoint::RoundPosition& position,
    StudentWeights weights)
    : config_(config),
      inputs_(inputs),
      engine_(engine),
      position_(position),
      weights_(std::move(weights)),
      folder_(config.run.dir, position.number),
      retokenizer_(config, inputs, folder_) {}

Json RoundWriter::make_request() const {
  const config::OnPolicySection& own = config_.onpolicy;
  Json request = {
      {"round", position_.number},
      {"first_step", position_.first_step},
      {"steps", position_.steps},
      {"sequences", position_.sequences},
      {"first_prompt", position_.first_prompt},
      {"prompts", position_.prompts},
      {"samples", own.samples},
      {"prompts_sha256", base::hex(inputs_.prompts->fingerprint())},
      {"weight_version", weights_.version},
      {"max_new_tokens", own.max_new_tokens},
      {"temperature", own.temperature},
      {"top_p", own.top_p},
      {"stop", own.stop},
      {"seed", own.seed}};
  if (position_.held_out > 0) {
    request["held_out"] = position_.held_out;
    request["eval_temperature"] = own.eval_temperature;
    request["eval_prompts_sha256"] = base::hex(inputs_.held_out->fingerprint());
  }
  return request;
}

CompletionRules RoundWriter::rules() const {
  return {
      requests_,
      config_.onpolicy.max_new_tokens,
      static_cast<int64_t>(inputs_.prompts->header().vocab_size),
      inputs_.limits.documents,
      inputs_.end_ids,
      weights_.version};
}

// Moves the good completions of the engine's output to kCompletionsFile. Whenever it is interrupted, the next call
// finds what is good in the two files.
absl::Status RoundWriter::collect() {
  const std::string kept = folder_.file(kCompletionsFile), output = folder_.file(kOutputFile);
  CompletionRules own = rules();
  auto fresh = read_completions(output, own);
  own.own_lines = true;
  if (auto read = read_completions(kept, own); read.ok()) {
    completions_ = std::move(read->completions);
  }
  if (!fresh.ok()) {
    return absl::OkStatus(); // the engine has written nothing
  }
  bad_ = std::move(fresh->bad);
  completions_.merge(std::move(fresh->completions));
  RETURN_IF_ERROR(keep_completions());
  std::error_code ignored;
  std::filesystem::remove(output, ignored);
  return absl::OkStatus();
}

absl::Status RoundWriter::keep_completions() const {
  std::string lines;
  for (const auto& [id, completion] : completions_) {
    lines += completion_line(requests_[static_cast<size_t>(id)], completion, weights_.version);
  }
  return base::replace_file(folder_.file(kCompletionsFile), lines);
}

absl::Status RoundWriter::begin(const RoundHooks& hooks) {
  request_ = make_request();
  std::string set_aside;
  RETURN_IF_ERROR(folder_.begin(request_, set_aside));
  if (!set_aside.empty()) {
    hooks.message(absl::StrFormat(
        "round %d is written anew: what was there is of other weights or settings, and is now %s", position_.number,
        set_aside));
  }
  complete_ = folder_.read_complete().ok();
  ASSIGN_OR_RETURN(
      requests_,
      round_requests(
          config_.onpolicy, *inputs_.prompts, position_.number, position_.first_prompt, training_completions()));
  if (position_.held_out > 0) {
    RETURN_IF_ERROR(add_held_out_requests(config_.onpolicy, *inputs_.held_out, position_.held_out, requests_));
  }
  RETURN_IF_ERROR(collect());
  bad_.clear(); // they are asked for again
  if (complete_) {
    hooks.message(absl::StrFormat("round %d is there, by the same weights, and is used again", position_.number));
    return absl::OkStatus();
  }
  if (!completions_.empty()) {
    hooks.message(absl::StrFormat(
        "round %d: %d of %d completions are there already", position_.number, completions_.size(), requests_.size()));
  }
  return completions_.size() < requests_.size() ? start_engine() : start_retokenizer();
}

absl::Status RoundWriter::start_engine() {
  std::vector<const Request*> missing;
  for (const Request& request : requests_) {
    if (!completions_.contains(request.id)) {
      missing.push_back(&request);
    }
  }
  const config::OnPolicySection& own = config_.onpolicy;
  const Sampling sampling{own.max_new_tokens, own.temperature, own.top_p, own.stop, inputs_.end_ids};
  const auto absolute = [&](const char* name) { return folder_.absolute_file(name); };
  job_ = {position_.number,        weights_.folder,       weights_.version,
          absolute(kRequestsFile), absolute(kOutputFile), absolute(kLogFile)};
  RETURN_IF_ERROR(base::replace_file(job_.requests, request_lines(missing, sampling, weights_.version)));
  started_ = Clock::now();
  RETURN_IF_ERROR(engine_.start(job_));
  running_ = Running::kEngine;
  return absl::OkStatus();
}

absl::Status RoundWriter::start_retokenizer() {
  ASSIGN_OR_RETURN(const bool started, retokenizer_.start(requests_, completions_, position_.number));
  running_ = started ? Running::kRetokenizer : Running::kNothing;
  return absl::OkStatus();
}

absl::StatusOr<bool> RoundWriter::ended() {
  if (running_ == Running::kEngine) {
    ASSIGN_OR_RETURN(const bool done, engine_ended());
    if (!done) {
      return false;
    }
  }
  return running_ == Running::kRetokenizer ? retokenizer_ended() : absl::StatusOr<bool>(true);
}

absl::StatusOr<bool> RoundWriter::engine_ended() {
  ASSIGN_OR_RETURN(const bool done, engine_.poll());
  if (!done && seconds_since(started_) > static_cast<double>(config_.onpolicy.timeout_s)) {
    engine_.stop();
    return absl::DeadlineExceededError(absl::StrFormat(
        "onpolicy.timeout_s: the engine has not ended within %d s in round %d, and was killed; %s",
        config_.onpolicy.timeout_s, position_.number, last_output(job_.log)));
  }
  if (done) {
    running_ = Running::kNothing;
    engine_seconds_ = seconds_since(started_);
    RETURN_IF_ERROR(collect());
    RETURN_IF_ERROR(start_retokenizer());
  }
  return done;
}

absl::StatusOr<bool> RoundWriter::retokenizer_ended() {
  ASSIGN_OR_RETURN(const bool done, retokenizer_.poll());
  if (done) {
    running_ = Running::kNothing;
    RETURN_IF_ERROR(retokenizer_.finish(requests_, completions_, bad_));
    RETURN_IF_ERROR(keep_completions());
  }
  return done;
}

void RoundWriter::stop() {
  engine_.stop();
  retokenizer_.stop();
}

// Adds a line for the completions that are missing without a bad line of their own.
void RoundWriter::check_missing() {
  const auto missing = static_cast<int64_t>(requests_.size() - completions_.size());
  const auto bad = static_cast<int64_t>(bad_.size());
  if (missing > bad) {
    bad_.push_back(absl::StrFormat("%d prompts have no completion at all", missing - bad));
  }
}

std::vector<const Completion*> RoundWriter::completions() const {
  std::vector<const Completion*> all;
  for (const std::vector<int64_t>& ids : documents_of_shards(requests_, completions_, inputs_)) {
    for (const int64_t id : ids) {
      all.push_back(&completions_.at(id));
    }
  }
  return all;
}

// Separates the completions of held-out prompts, whose requests come after the others, from those that are trained on.
void RoundWriter::take_held_out() {
  const auto first = completions_.lower_bound(training_completions());
  held_out_.insert(first, completions_.end());
  completions_.erase(first, completions_.end());
}

// Writes the shard of held-out prompts and completions, and adds their numbers to the result.
absl::Status RoundWriter::write_held_out(Json& result, const RoundHooks& hooks) const {
  if (position_.held_out == 0) {
    return absl::OkStatus();
  }
  if (held_out_.empty()) {
    hooks.warning(absl::StrFormat(
        "round %d: no completion of a held-out prompt (onpolicy.eval_prompts) can be used: the student is not evaluated "
        "on its own words",
        position_.number));
    return absl::OkStatus();
  }
  const std::string folder = folder_.file(kHeldOutFolder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InternalError(absl::StrCat(folder, ": cannot create: ", error.message()));
  }
  result[kHeldOutKey] = stats_json(round_stats(held_out_));
  return write_round_shards(folder, requests_, held_out_, inputs_, inputs_.held_out->header());
}

// The tokens that are left off at the ends of the completions that are trained on, for the result; also for the log.
Json RoundWriter::add_left_off(const RoundHooks& hooks) const {
  const LeftOff left = sum_left_off(completions_);
  if (left != LeftOff{}) {
    hooks.message(absl::StrFormat(
        "round %d: left off at the ends of completions: %d tokens of incomplete characters, %d of a truncated text's last "
        "word, %d for which data.teacher_seq_len has no room",
        position_.number, left.characters, left.spans, left.room));
  }
  if (left.room > 0) {
    hooks.warning(absl::StrFormat(
        "round %d: %d tokens at the ends of completions are not learned, since the teacher's tokens of the same texts do "
        "not fit: raise data.teacher_seq_len, %d, or lower onpolicy.max_new_tokens",
        position_.number, left.room, config_.data.teacher_length()));
  }
  return {{"characters", left.characters}, {"spans", left.spans}, {"room", left.room}};
}

absl::Status RoundWriter::finish(const RoundHooks& hooks) {
  if (complete_) {
    take_held_out();
    return absl::OkStatus();
  }
  const size_t wanted = requests_.size(), missing = wanted - completions_.size();
  check_missing();
  take_held_out();
  const std::string counts = absl::StrFormat(
      "round %d: %d of %d completions are missing or cannot be used", position_.number, missing, wanted);
  if (static_cast<double>(missing) > config_.onpolicy.max_bad * static_cast<double>(wanted) || completions_.empty()) {
    return absl::AbortedError(absl::StrCat(
        counts, ", more than onpolicy.max_bad, ", config_.onpolicy.max_bad, ":", first_problems(bad_),
        "\nthe engine: ", last_output(job_.log)));
  }
  if (missing > 0) {
    hooks.warning(absl::StrCat(counts, ", and are left out:", first_problems(bad_)));
  }
  const Clock::time_point began = Clock::now();
  RETURN_IF_ERROR(write_round_shards(folder_.path(), requests_, completions_, inputs_, inputs_.prompts->header()));
  const double shard_seconds = seconds_since(began);
  const RoundStats stats = round_stats(completions_);
  Json result = stats_json(stats);
  result["left_out"] = missing;
  const bool by_bytes = config_.any_teacher_by_bytes();
  if (by_bytes) {
    result["left_off"] = add_left_off(hooks);
  }
  RETURN_IF_ERROR(write_held_out(result, hooks));
  result[kSecondsKey] = {{"weights", weights_.seconds}, {"engine", engine_seconds_}, {"shard", shard_seconds}};
  if (by_bytes) {
    result[kSecondsKey]["retokenize"] = retokenizer_.seconds();
  }
  RETURN_IF_ERROR(folder_.complete(request_, result));
  const std::string round = absl::StrFormat("round %d: ", position_.number);
  hooks.message(absl::StrFormat(
      "%s%s, by the weights %s (%.1f s to write them, %.1f s for the engine, %s%.1f s for the shard)", round,
      stats_line(stats), weights_.version, weights_.seconds, engine_seconds_,
      by_bytes ? absl::StrFormat("%.1f s for the teacher's tokens, ", retokenizer_.seconds()) : "", shard_seconds));
  for (const std::string& warning : stats_warnings(stats)) {
    hooks.warning(round + warning);
  }
  if (config_.onpolicy.keep_rounds > 0) {
    const auto checkpoints = checkpoint::complete_checkpoints(config_.run.dir);
    remove_old_rounds(
        config_.run.dir, position_.number, config_.onpolicy.keep_rounds,
        checkpoints.empty() ? 0 : checkpoints.begin()->first);
  }
  return absl::OkStatus();
}

} // namespace distill::onpolicy
