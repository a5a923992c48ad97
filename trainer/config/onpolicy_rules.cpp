#include "trainer/config/onpolicy_rules.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "trainer/config/command_template.h"
#include "trainer/config/field.h"

namespace distill::config {
namespace {

// A micro-batch has sequences of one kind, since it has one loss.
void check_batch(const Config& config, const ReportProblem& fail) {
  const int64_t micro = config.train.micro_batch_size, global = config.train.global_batch_size;
  const double share = config.onpolicy.fraction * static_cast<double>(global);
  const int64_t own = config.onpolicy_sequences();
  if (std::abs(share - static_cast<double>(own)) > 1e-6 * static_cast<double>(global) || own % micro != 0 || own == 0) {
    fail(
        {"onpolicy.fraction", "train.global_batch_size", "train.micro_batch_size"},
        absl::StrCat(
            "a share of train.global_batch_size, ", global, ", that is a multiple of micro_batch_size, ", micro),
        absl::StrCat(config.onpolicy.fraction, ", ", share, " sequences"), "");
  }
}

void check_completions(const Config& config, const ReportProblem& fail) {
  const int64_t completions = config.onpolicy_completions(), samples = config.onpolicy.samples;
  const int64_t sequences = config.onpolicy.every * config.onpolicy_sequences();
  if (completions % samples != 0) {
    fail(
        {"onpolicy.samples", "onpolicy.completions", "onpolicy.every"},
        absl::StrCat("a divisor of the round's ", completions, " completions"), absl::StrCat(samples), "");
  }
  if (completions < sequences) {
    fail(
        {"onpolicy.completions", "onpolicy.every"},
        absl::StrCat("at least one for each of the round's ", sequences, " on-policy sequences"),
        absl::StrCat(completions), "");
  }
}

// Whether a command has placeholders of these names alone.
bool check_placeholders(
    const char* key, const std::string& command, absl::Span<const std::string_view> names, const ReportProblem& fail) {
  const auto unknown = unknown_placeholder(command, names);
  if (unknown) {
    fail(
        {key}, absl::StrCat(names.size() > 1 ? "placeholders of " : "no placeholder but ", placeholder_text(names)),
        *unknown, "{{ and }} stand for single braces");
  }
  return !unknown;
}

void check_command(const std::string& command, const ReportProblem& fail) {
  if (command.empty()) {
    fail({"onpolicy.command", "onpolicy.prompts"}, "the command that writes the completions of a round", "none", "");
  } else if (
      check_placeholders("onpolicy.command", command, kCommandPlaceholders, fail) &&
      (!has_placeholder(command, "prompts") || !has_placeholder(command, "output"))) {
    fail({"onpolicy.command"}, "a command with {prompts} and {output}", command, "");
  }
}

// A teacher with a tokenizer of its own reads the completions in its tokens.
void check_retokenize(const Config& config, const ReportProblem& fail) {
  const std::string& command = config.onpolicy.retokenize;
  if (!config.any_teacher_by_bytes()) {
    return;
  }
  if (command.empty()) {
    fail(
        {"onpolicy.retokenize", "teacher.alignment"},
        "the command that writes the completions in the teacher's tokens, with teacher.alignment: bytes", "none",
        "retokenize: .venv/bin/python scripts/retokenize_completions.py --completions {completions} --output {output}");
  } else if (
      check_placeholders("onpolicy.retokenize", command, kRetokenizePlaceholders, fail) &&
      (!has_placeholder(command, "completions") || !has_placeholder(command, "output"))) {
    fail({"onpolicy.retokenize"}, "a command with {completions} and {output}", command, "");
  }
}

// Held-out prompts are not among those that are trained on, and are continued at some time.
void check_held_out(const Config& config, const ReportProblem& fail) {
  const OnPolicySection& own = config.onpolicy;
  for (const DataSet& set : own.eval_prompts) {
    const auto same = [&](const DataSet& other) { return other.path == set.path; };
    if (std::any_of(own.prompts.begin(), own.prompts.end(), same)) {
      fail(
          {"onpolicy.eval_prompts", "onpolicy.prompts"}, "held-out prompts, which are not trained on",
          absl::StrCat(set.path, " in both"), "");
    }
  }
  if (!own.eval_prompts.empty() && config.eval.every == 0 && !config.eval.at_start) {
    fail(
        {"onpolicy.eval_prompts", "eval.every"},
        "eval.every above 0, or eval.at_start, where there are held-out prompts", "0", "");
  }
}

} // namespace

void check_on_policy(const Config& config, const ReportProblem& fail) {
  const OnPolicySection& own = config.onpolicy;
  if (!own.enabled()) {
    return;
  }
  if (!config.has_teacher() || config.teacher.reads_cache()) {
    fail(
        {"teacher.source", "teacher.path", "onpolicy.prompts"}, "a teacher that runs, to judge what the student writes",
        config.has_teacher() ? "a cache, which has other texts" : "none", "");
  }
  check_command(own.command, fail);
  check_placeholders("onpolicy.server", own.server, kServerPlaceholders, fail); // it is started once, before requests
  check_retokenize(config, fail);
  if (config.onpolicy_loss.hard_weight > 0) {
    fail(
        {"onpolicy_loss.hard_weight"}, "0", to_yaml(*find_field("onpolicy_loss.hard_weight"), config),
        "the labels of on-policy sequences are the student's own words: cross-entropy on them would teach it what it "
        "says already");
  }
  if (config.onpolicy_loss.divergence == losses::Divergence::kNone || config.onpolicy_loss.soft_weight == 0) {
    fail(
        {"onpolicy_loss.divergence", "onpolicy_loss.soft_weight"},
        "a divergence from the teacher, with a weight above 0",
        absl::StrCat(
            base::enum_name(config.onpolicy_loss.divergence), ", soft_weight ", config.onpolicy_loss.soft_weight),
        "");
  }
  if (own.max_new_tokens >= config.data.seq_len) {
    fail(
        {"onpolicy.max_new_tokens", "data.seq_len"},
        absl::StrCat("fewer than data.seq_len, ", config.data.seq_len, ", with room for a prompt"),
        absl::StrCat(own.max_new_tokens), "");
  }
  if (config.train.epochs > 0) {
    fail({"train.epochs", "onpolicy.prompts"}, "train.steps or train.tokens for an on-policy run", "train.epochs", "");
  }
  if (!own.mixes() && !config.data.train.empty()) {
    fail(
        {"onpolicy.fraction", "data.train"}, "below 1 where there is data.train", "1",
        "with 1 all sequences are on-policy: remove data.train, or say how much of a batch it is");
  }
  if (own.staleness > 0 && (own.offload == EngineOffload::kAll || own.engine_gib > 0)) {
    fail(
        {"onpolicy.staleness", "onpolicy.offload", "onpolicy.engine_gib"},
        "0 for an engine on the trainer's GPUs, which works while training waits", absl::StrCat(own.staleness), "");
  }
  check_batch(config, fail);
  check_completions(config, fail);
  check_held_out(config, fail);
}

} // namespace distill::config
