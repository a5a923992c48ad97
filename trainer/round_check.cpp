#include "trainer/round_check.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cmath>

#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

// The mean over the on-policy tokens of the samples [0, count), each of whose documents is whole.
absl::StatusOr<double> engine_mean(const onpolicy::Round& round, int64_t count) {
  ASSIGN_OR_RETURN(const data::Batch batch, round.data->batch(0, count));
  double sum = 0;
  for (const data::Stretch& stretch : batch.stretches) {
    sum += round.engine_logprobs.at(static_cast<size_t>(stretch.document));
  }
  return sum / static_cast<double>(batch.valid_tokens);
}

} // namespace

std::string RoundCheck::line() const {
  const std::string engine = std::isfinite(engine_logprob) ? absl::StrFormat(", the engine's %.4f", engine_logprob)
                                                           : std::string(", the engine gives none");
  return absl::StrFormat(
      "%d tokens that the student has written: mean log-probability %.4f nats%s; KL to the teacher %.4f/%.4f, entropy "
      "%.3f, the teacher agrees with %.1f%%",
      means.valid_tokens, own_logprob, engine, means.metrics[losses::kForwardKl], means.metrics[losses::kReverseKl],
      means.metrics[losses::kStudentEntropy], 100 * means.metrics[losses::kAgreement]);
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

absl::StatusOr<RoundCheck> check_round(
    MicroBatchRunner& micro, const onpolicy::Round& round, int64_t micro_batch_size, const sharding::Mesh& mesh) {
  auto batch = round.data->batch(mesh.own_first(0, micro_batch_size), micro_batch_size);
  RETURN_IF_ERROR(sharding::agree(mesh, batch.status()));
  batch->on_policy = true;
  at::Tensor sums_M = micro.zero_sums();
  micro.evaluate(*batch, sums_M);
  if (!micro.one_sided_mass().empty()) {
    micro.one_sided_mass().take_sum(); // which is an evaluation's
  }
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sums_M);
  }
  const int64_t tokens = sharding::sum_over_ranks(mesh, batch->valid_tokens);
  RoundCheck check;
  check.means = metrics::loss_means(sums_to_host(sums_M), tokens, micro.evaluation_quality());
  check.own_logprob = -check.means.metrics[losses::kHard];
  check.engine_logprob = NAN;
  if (mesh.is_main()) {
    auto mean = engine_mean(round, mesh.samples_together(micro_batch_size));
    check.engine_logprob = mean.ok() ? *mean : NAN;
  }
  return check;
}

} // namespace distill::trainer
