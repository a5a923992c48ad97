#include "trainer/evaluator.h"

#include <algorithm>
#include <cmath>

#include "data/base/status_macros.h"
#include "data/prefetch.h"
#include "trainer/loader/batch_loader.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/task_progress.h"

namespace distill::trainer {

namespace {

// Samples [first, end) of one teacher, which the ranks compute together.
struct Round {
  int64_t first, end;
};

// The micro-batches of each teacher, of `max_batches` in all: in proportion to its samples in one epoch, and one at
// least on each rank.
std::vector<int64_t> batches_of_teachers(const data::Dataset& data, int64_t max_batches, const sharding::Mesh& mesh) {
  const std::vector<std::string>& names = data.options().teachers;
  std::vector<int64_t> samples(data.teacher_shares().size(), 0);
  int64_t all = 0;
  for (const data::SourceStats& source : data.stats()) {
    const size_t teacher =
        source.teacher.empty() ? 0 : std::find(names.begin(), names.end(), source.teacher) - names.begin();
    samples[teacher] += source.samples;
    all += source.samples;
  }
  std::vector<int64_t> batches;
  for (const int64_t own : samples) {
    const double share = static_cast<double>(own) / static_cast<double>(all);
    const auto wanted = std::llround(share * static_cast<double>(max_batches));
    batches.push_back(own == 0 ? 0 : samples.size() == 1 ? max_batches : std::max<int64_t>(wanted, mesh.data_size()));
  }
  return batches;
}

std::vector<Round> rounds_of(
    const data::Dataset& data, int64_t micro_batch_size, int64_t max_batches, const sharding::Mesh& mesh) {
  const int64_t num_samples = data.num_samples(), together = mesh.samples_together(micro_batch_size);
  std::vector<int64_t> left; // samples of each teacher
  for (const int64_t batches : batches_of_teachers(data, max_batches, mesh)) {
    left.push_back(max_batches > 0 ? batches * micro_batch_size : num_samples);
  }
  std::vector<Round> rounds;
  const auto any_left = [&] { return std::any_of(left.begin(), left.end(), [](int64_t own) { return own > 0; }); };
  for (int64_t first = 0; first < num_samples && any_left(); first += together) {
    int64_t& own = left[static_cast<size_t>(data.teacher_of(first))];
    if (const int64_t end = std::min({num_samples, first + together, first + own}); end > first) {
      rounds.push_back({first, end});
      own -= end - first;
    }
  }
  return rounds;
}

// Adds the probability that each teacher gave to tokens which have no part in the loss, and that of all together.
template <typename Tokens>
void add_dropped_mass(
    MicroBatchRunner& micro, const sharding::Mesh& mesh, const Tokens& tokens_T, EvaluationResult& result) {
  double all = 0;
  bool is_known = false;
  for (int64_t i = 0; i < micro.teachers(); ++i) {
    DroppedMass& mass = micro.dropped_mass(i);
    at::Tensor sum = mass.take_sum();
    const auto tokens = static_cast<double>(tokens_T[static_cast<size_t>(i)]);
    if (!sum.defined() || tokens == 0) {
      continue;
    }
    if (mesh.world != nullptr) {
      mesh.world->all_reduce(sum);
    }
    const auto total = sum.item<double>();
    all += total;
    is_known = true;
    if (static_cast<size_t>(i) < result.teachers.size()) {
      result.teachers[static_cast<size_t>(i)].means.teacher_dropped_mass = total / tokens;
    }
    if (mesh.is_main()) {
      const std::string name = result.teachers.empty() ? "" : " " + result.teachers[static_cast<size_t>(i)].name;
      metrics::log_info(absl::StrFormat(
          "the teacher%s's mean probability of its %d tokens that have no part in the loss: %.4g", name, mass.size(),
          total / tokens));
    }
  }
  if (is_known && result.means.valid_tokens > 0) {
    result.means.teacher_dropped_mass = all / static_cast<double>(result.means.valid_tokens);
  }
}

} // namespace

absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroBatchRunner& micro, const std::shared_ptr<const data::Dataset>& data, int64_t micro_batch_size,
    int64_t max_batches, const sharding::Mesh& mesh, const EvaluationHooks& hooks, bool on_policy) {
  EvaluationResult result;
  const std::vector<Round> rounds = rounds_of(*data, micro_batch_size, max_batches, mesh);
  int64_t samples = 0;
  for (const Round& round : rounds) {
    samples += round.end - round.first;
  }
  // A rank without samples in a round computes one of padding, since the others gather weights together with it.
  const auto range_of = [&](int64_t number) {
    const Round& round = rounds[static_cast<size_t>(number)];
    const int64_t own = mesh.own_first(round.first, micro_batch_size);
    return own < round.end ? data::SampleRange{own, std::min(micro_batch_size, round.end - own)}
                           : data::SampleRange{data->num_samples() + data->teacher_of(round.first), 1};
  };
  data::Prefetcher prefetcher(data, range_of, static_cast<int64_t>(rounds.size()), /*depth=*/2, "eval data");
  BatchLoader loader(mesh, prefetcher, /*micro_batches=*/1, {.asked_to_stop = hooks.asked_to_stop});
  at::Tensor sums_TM = micro.zero_sums();
  std::vector<int64_t> tokens_T(static_cast<size_t>(micro.teachers()), 0);
  int64_t valid_tokens = 0;
  std::optional<metrics::TaskProgress> progress;
  if (mesh.is_main()) {
    progress.emplace("evaluation", samples, "sequences", hooks.progress);
  }
  for (const Round& round : rounds) {
    ASSIGN_OR_RETURN(std::optional<GlobalBatch> batch, loader.next());
    if (!batch) {
      result.interrupted = true;
      break;
    }
    hooks.before_batch();
    batch->micro_batches.front().on_policy = on_policy;
    micro.evaluate(batch->micro_batches.front(), sums_TM);
    valid_tokens += batch->valid_tokens;
    tokens_T[static_cast<size_t>(batch->micro_batches.front().teacher_number)] += batch->valid_tokens;
    result.samples += round.end - round.first;
    if (progress) {
      progress->update(result.samples);
    }
  }
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sums_TM);
  }
  const auto sums = sums_to_host(sums_TM);
  std::vector<metrics::TeacherSums> of_teachers;
  for (size_t i = 0; i < sums.size(); ++i) {
    of_teachers.push_back(
        metrics::teacher_sums(sums[i], tokens_T[i], micro.evaluation_quality(static_cast<int64_t>(i))));
  }
  result.means = metrics::loss_means(of_teachers, valid_tokens, micro.evaluation_quality());
  result.teachers = metrics::means_of_teachers(data->options().teachers, of_teachers);
  add_dropped_mass(micro, mesh, tokens_T, result);
  return result;
}

absl::StatusOr<std::vector<std::string>> sample_losses(
    MicroBatchRunner& micro, const data::BatchSource& data, int64_t first, int64_t count, int64_t number,
    const sharding::Mesh& mesh) {
  const int64_t share = count / mesh.data_size();
  at::Tensor own = at::zeros({share, 2}, at::kDouble); // tokens in the loss, mean loss
  for (int64_t i = 0; i < share; ++i) { // the ranks' samples next to each other have one teacher
    ASSIGN_OR_RETURN(const data::Batch batch, data.batch(mesh.own_first(first + i * mesh.data_size(), 1), 1));
    at::Tensor sums_TM = micro.zero_sums();
    micro.evaluate(batch, sums_TM);
    own[i][0] = static_cast<double>(batch.valid_tokens);
    own[i][1] = sums_to_host(sums_TM)[static_cast<size_t>(batch.teacher_number)][losses::kLoss] /
        static_cast<double>(std::max<int64_t>(1, batch.valid_tokens));
  }
  const at::Tensor all =
      sharding::gather_parts(mesh, own).view({mesh.data_size(), share, 2}).transpose(0, 1).reshape({count, 2});
  std::vector<std::string> lines;
  for (int64_t i = 0; i < all.size(0); ++i) {
    const auto tokens = static_cast<int64_t>(all[i][0].item<double>());
    const double loss = all[i][1].item<double>();
    lines.push_back(
        tokens == 0 ? absl::StrFormat("sample %d: no token has a target", number + i)
                    : absl::StrFormat("sample %d: loss %.6g over %d tokens", number + i, loss, tokens));
  }
  return lines;
}

} // namespace distill::trainer
