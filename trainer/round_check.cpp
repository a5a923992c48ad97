#include "trainer/round_check.h"

#include <ATen/ops/stack.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

// The metrics of which a JudgedToken is made, in the order in which the ranks exchange them.
constexpr int64_t kJudged[] = {losses::kLoss,      losses::kHard,           losses::kForwardKl,
                               losses::kReverseKl, losses::kStudentEntropy, losses::kAgreement};
constexpr int64_t kNumJudged = std::size(kJudged);

// The mean over the on-policy tokens of the samples of `batch`, each of whose documents is whole.
double engine_mean(const onpolicy::Round& round, const onpolicy::RoundShards& shards, const data::Batch& batch) {
  double sum = 0;
  for (const data::Stretch& stretch : batch.stretches) {
    sum += round.engine_logprobs.at(static_cast<size_t>(shards.number(*stretch.shard, stretch.document)));
  }
  return sum / static_cast<double>(batch.valid_tokens);
}

// Whether the distributions are compared at each token of the batch.
std::vector<bool> compared_tokens(const data::Batch& batch, const losses::SpanOptions& spans) {
  std::vector<bool> compared(static_cast<size_t>(batch.targets_BS.numel()), true);
  if (!batch.teacher || !batch.teacher->aligned) {
    return compared;
  }
  compared.assign(compared.size(), false);
  const data::AlignedPieces& pieces = *batch.teacher->aligned;
  const auto rows = pieces.first_rows_Z.accessor<int64_t, 1>();
  for (int64_t piece = spans.starts ? 0 : pieces.spans; piece < pieces.pieces; ++piece) {
    compared[static_cast<size_t>(rows[piece])] = true;
  }
  return compared;
}

// `batch`: the samples of all ranks together; ranks_RJN: the metrics kJudged of each rank's N tokens, float.
std::vector<onpolicy::JudgedCompletion> judged_completions(
    const data::Batch& batch, const onpolicy::RoundShards& shards, const at::Tensor& ranks_RJN,
    const losses::SpanOptions& spans) {
  const std::vector<bool> compared = compared_tokens(batch, spans);
  const auto values = ranks_RJN.accessor<float, 3>();
  const at::Tensor targets_T = batch.targets_BS.flatten();
  const auto targets = targets_T.accessor<int64_t, 1>();
  const int64_t tokens = ranks_RJN.size(2);
  std::vector<onpolicy::JudgedCompletion> completions;
  for (const data::Stretch& stretch : batch.stretches) {
    onpolicy::JudgedCompletion completion{shards.number(*stretch.shard, stretch.document)};
    for (int64_t at = stretch.at; at < stretch.at + stretch.tokens; ++at) {
      if (targets[at] == losses::kIgnoreIndex) {
        continue; // the next token is one of the prompt, or there is none
      }
      const auto value = values[at / tokens];
      const auto of = [&](int64_t metric) { return static_cast<double>(value[metric][at % tokens]); };
      completion.tokens.push_back({of(0), -of(1), of(2), of(3), of(4), of(5) > 0.5, compared[static_cast<size_t>(at)]});
    }
    completions.push_back(std::move(completion));
  }
  return completions;
}

Json known(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

// What is known of all of the round's documents whose teacher has a tokenizer of its own; nullopt: there are none.
std::optional<data::AlignmentStats> alignment_of(const data::Dataset& data) {
  std::optional<data::AlignmentStats> all;
  for (const data::SourceStats& source : data.stats()) {
    if (!source.alignment) {
      continue;
    }
    data::AlignmentStats& sum = all ? *all : all.emplace();
    sum.documents += source.alignment->documents;
    sum.tokens += source.alignment->tokens;
    sum.teacher_tokens += source.alignment->teacher_tokens;
    sum.pieces += source.alignment->pieces;
    sum.spans += source.alignment->spans;
    sum.span_tokens += source.alignment->span_tokens;
    for (const auto& [text, count] : source.alignment->student_passed) {
      sum.student_passed[text] += count;
    }
    for (const auto& [text, count] : source.alignment->teacher_passed) {
      sum.teacher_passed[text] += count;
    }
  }
  return all;
}

Json alignment_json(const data::AlignmentStats& found) {
  const auto sum = [](const std::map<std::string, int64_t>& counts) {
    int64_t all = 0;
    for (const auto& [text, count] : counts) {
      all += count;
    }
    return all;
  };
  return {
      {"teacher_tokens", found.teacher_tokens},
      {"pieces", found.pieces},
      {"spans", found.spans},
      {"span_tokens", found.span_tokens},
      {"unpaired_tokens", sum(found.student_passed)},
      {"teacher_unpaired_tokens", sum(found.teacher_passed)}};
}

Json judged_means(const metrics::LossMeans& means) {
  Json json = {
      {"tokens", means.valid_tokens},
      {"loss", known(means.metrics[losses::kLoss])},
      {"forward_kl", known(means.metrics[losses::kForwardKl])},
      {"reverse_kl", known(means.metrics[losses::kReverseKl])},
      {"student_entropy", known(means.metrics[losses::kStudentEntropy])},
      {"agreement", known(means.metrics[losses::kAgreement])}};
  if (means.alignment) {
    json["boundary_share"] = known(means.alignment->boundary_share);
    json["span_share"] = known(means.alignment->span_share);
    json["span_loss"] = known(means.alignment->span_loss);
    json["teacher_dropped_mass"] = means.teacher_dropped_mass ? known(*means.teacher_dropped_mass) : Json();
  }
  return json;
}

} // namespace

std::string RoundCheck::line() const {
  const std::string engine = std::isfinite(engine_logprob) ? absl::StrFormat(", the engine's %.4f", engine_logprob)
                                                           : std::string(", the engine gives none");
  const auto [early, late] = onpolicy::early_and_late(positions, most);
  const std::string by_position = early.tokens == 0 || late.tokens == 0
      ? std::string()
      : absl::StrFormat(
            " (KL %.4f and %.1f%% in the first quarter of onpolicy.max_new_tokens, %.4f and %.1f%% in the last one)",
            early.reverse_kl, 100 * early.agreement, late.reverse_kl, 100 * late.agreement);
  return absl::StrFormat(
      "%d tokens that the student has written: mean log-probability %.4f nats%s; KL to the teacher %.4f/%.4f, entropy "
      "%.3f, the teacher agrees with %.1f%%%s",
      means.valid_tokens, own_logprob, engine, means.metrics[losses::kForwardKl], means.metrics[losses::kReverseKl],
      means.metrics[losses::kStudentEntropy], 100 * means.metrics[losses::kAgreement], by_position);
}

std::string RoundCheck::held_out_line() const {
  return held_out ? absl::StrFormat(
                        "%d tokens that the student has written for held-out prompts: KL to the teacher %.4f/%.4f, the "
                        "teacher agrees with %.1f%%",
                        held_out->valid_tokens, held_out->metrics[losses::kForwardKl],
                        held_out->metrics[losses::kReverseKl], 100 * held_out->metrics[losses::kAgreement])
                  : std::string();
}

Json RoundCheck::json() const {
  const auto [early, late] = onpolicy::early_and_late(positions, most);
  Json judged = {
      {"logprob", known(own_logprob)},
      {"engine_logprob", known(engine_logprob)},
      {"logprob_gap", known(std::abs(engine_logprob - own_logprob))},
      {"reverse_kl_early", known(early.reverse_kl)},
      {"reverse_kl_late", known(late.reverse_kl)},
      {"agreement_early", known(early.agreement)},
      {"agreement_late", known(late.agreement)}};
  judged.update(judged_means(means));
  Json json = {{onpolicy::kJudgedKey, judged}, {onpolicy::kSecondsKey, {{"check", seconds}}}};
  if (alignment) {
    json["alignment"] = alignment_json(*alignment);
  }
  if (held_out) {
    json[onpolicy::kHeldOutKey] = judged_means(*held_out);
  }
  return json;
}

absl::Status RoundCheck::verdict(double limit) const {
  if (limit == 0 || !std::isfinite(engine_logprob) || std::abs(engine_logprob - own_logprob) <= limit) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "the engine's log-probabilities of what it has written are %.4f nats in the mean, and the student's own are %.4f: "
      "expected a difference of at most %g (onpolicy.max_logprob_gap); the engine has other weights than those of this "
      "round, computes another model, or gives log-probabilities after temperature or top_p",
      engine_logprob, own_logprob, limit));
}

absl::StatusOr<std::optional<RoundCheck>> check_round(
    const config::Config& config, MicroBatchRunner& micro, const onpolicy::Round& round, const sharding::Mesh& mesh,
    const EvaluationHooks& hooks) {
  const auto began = std::chrono::steady_clock::now();
  const int64_t samples = config.train.micro_batch_size;
  auto batch = round.data->batch(mesh.own_first(0, samples), samples);
  RETURN_IF_ERROR(sharding::agree(mesh, batch.status()));
  batch->on_policy = true;
  at::Tensor sums_TM = micro.zero_sums(), tokens_MN;
  micro.evaluate(*batch, sums_TM, &tokens_MN);
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sums_TM);
  }
  std::vector<at::Tensor> own;
  for (const int64_t metric : kJudged) {
    own.push_back(tokens_MN[metric].to(at::kCPU, at::kFloat));
  }
  const int64_t tokens = tokens_MN.size(1);
  const at::Tensor ranks_RJN = sharding::gather_parts(mesh, at::stack(own)).view({-1, kNumJudged, tokens});
  RoundCheck check;
  check.most = config.onpolicy.max_new_tokens;
  check.teacher = batch->teacher_number;
  check.alignment = alignment_of(*round.data);
  const int64_t valid_tokens = sharding::sum_over_ranks(mesh, batch->valid_tokens);
  const losses::MetricQualities quality = micro.evaluation_quality(batch->teacher_number);
  const metrics::TeacherSums sums =
      metrics::teacher_sums(sums_to_host(sums_TM)[static_cast<size_t>(batch->teacher_number)], valid_tokens, quality);
  check.means = metrics::loss_means(absl::MakeConstSpan(&sums, 1), valid_tokens, quality);
  if (at::Tensor dropped = micro.dropped_mass(batch->teacher_number).take_sum();
      dropped.defined() && check.means.valid_tokens > 0) {
    if (mesh.world != nullptr) {
      mesh.world->all_reduce(dropped);
    }
    check.dropped_mass = dropped.item<double>() / static_cast<double>(check.means.valid_tokens);
  }
  check.own_logprob = -check.means.metrics[losses::kHard];
  check.engine_logprob = NAN;
  absl::Status status;
  if (mesh.is_main()) {
    const auto all = round.data->batch(0, mesh.samples_together(samples));
    status = all.status();
    if (all.ok()) {
      const onpolicy::RoundShards shards(round.data->shards());
      check.engine_logprob = engine_mean(round, shards, *all);
      check.completions = judged_completions(*all, shards, ranks_RJN, config.onpolicy_spans);
      check.positions = onpolicy::by_position(check.completions, check.most);
    }
  }
  RETURN_IF_ERROR(sharding::agree(mesh, status));
  if (round.held_out != nullptr) {
    ASSIGN_OR_RETURN(
        const EvaluationResult result,
        evaluate_dataset(micro, round.held_out, samples, /*max_batches=*/0, mesh, hooks, /*on_policy=*/true));
    if (result.interrupted) {
      return std::optional<RoundCheck>();
    }
    check.held_out = result.means;
  }
  check.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return std::optional(std::move(check));
}

absl::Status record_check(
    const onpolicy::Rounds& rounds, const onpolicy::Round& round, const RoundCheck& check, RunJournal& journal) {
  ASSIGN_OR_RETURN(const Json result, rounds.judge(round, check.completions, check.json()));
  if (const std::string warning = onpolicy::position_warning(check.positions, check.most); !warning.empty()) {
    journal.warning(absl::StrFormat("round %d: %s", round.position.number, warning));
  }
  Json values = {{"number", round.position.number}, {"steps", round.position.steps}};
  values.update(result);
  values[onpolicy::kJudgedKey].erase(onpolicy::kJudgedChecksumKey);
  return journal.round(round.position.first_step, values);
}

} // namespace distill::trainer
