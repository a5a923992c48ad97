#include "trainer/run_folder/events.h"

#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/run_folder/recorded_metrics.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWindow = 64;
constexpr size_t kFewest = 16;
constexpr double kLeastDeviation = 0.01; // of the mean
constexpr const char* kTeacherWorse = "teacher_worse_than_student";
constexpr const char* kNearFloat8Error = "near_float8_error";

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

} // namespace

std::optional<SpikeDetector::Spike> SpikeDetector::next(double loss) {
  if (!std::isfinite(loss) || sigmas_ <= 0) {
    return std::nullopt;
  }
  if (losses_.size() >= kFewest) {
    std::vector<double> values(losses_.begin(), losses_.end());
    const double middle = median(values);
    for (double& value : values) {
      value = std::abs(value - middle);
    }
    // 1.4826 converts the median absolute deviation to the standard deviation of a normal distribution.
    const double deviation = std::max(1.4826 * median(values), kLeastDeviation * std::abs(middle));
    if (loss > middle + sigmas_ * deviation) {
      return Spike{middle, deviation};
    }
  }
  losses_.push_back(loss);
  if (losses_.size() > kWindow) {
    losses_.pop_front();
  }
  return std::nullopt;
}

absl::StatusOr<RunEvents> RunEvents::open(
    const std::string& run_dir, const metrics::KeptSteps& kept, double spike_sigmas, double float8_error) {
  ASSIGN_OR_RETURN(auto file, metrics::JsonLines::open(run_dir + "/events.jsonl", kept));
  RunEvents events(run_dir, std::move(file), spike_sigmas, float8_error);
  RETURN_IF_ERROR(for_each_recorded_means(run_dir, kept, [&](const RecordedMeans& means) {
    if (means.evaluation) {
      events.teacher_.evaluation(means.hard, means.teacher_ce, means.valid_tokens);
    } else {
      events.spikes_.next(means.loss);
      events.teacher_.step(means.hard, means.teacher_ce);
      events.float8_.step(means.forward_kl);
    }
  }));
  return events;
}

absl::StatusOr<std::vector<std::string>> RunEvents::step(const metrics::StepMetrics& record) {
  std::vector<std::string> lines;
  ASSIGN_OR_RETURN(std::string spoiled, spoiled_step(record));
  if (!spoiled.empty()) {
    lines.push_back(std::move(spoiled));
  }
  if (record.means.valid_tokens == 0) {
    return lines;
  }
  const auto& means = record.means.metrics;
  if (const auto found = teacher_.step(means[losses::kHard], means[losses::kTeacherCe])) {
    Json json;
    json[metrics::kStepKey] = record.step;
    json["event"] = kTeacherWorse;
    json["steps"] = metrics::TeacherCheck::kSteps;
    json["teacher_ce"] = found->teacher_ce;
    json["hard"] = found->student_ce;
    RETURN_IF_ERROR(file_.append(json.dump()));
    lines.push_back(absl::StrFormat(
        "step %d: %s", record.step,
        metrics::describe(*found, absl::StrFormat("data.train (mean of %d steps)", metrics::TeacherCheck::kSteps))));
  }
  if (const auto kl = float8_.step(means[losses::kForwardKl])) {
    Json json;
    json[metrics::kStepKey] = record.step;
    json["event"] = kNearFloat8Error;
    json["steps"] = metrics::Float8Check::kSteps;
    json["forward_kl"] = *kl;
    json["float8_error"] = float8_.error();
    RETURN_IF_ERROR(file_.append(json.dump()));
    lines.push_back(absl::StrFormat("step %d: %s", record.step, metrics::describe_float8(*kl, float8_.error())));
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> RunEvents::evaluation(int64_t step, const metrics::LossMeans& means) {
  std::vector<std::string> lines;
  const auto found =
      teacher_.evaluation(means.metrics[losses::kHard], means.metrics[losses::kTeacherCe], means.valid_tokens);
  if (found) {
    Json json;
    json[metrics::kStepKey] = step;
    json["event"] = kTeacherWorse;
    json[metrics::kEvalKey] = {{"teacher_ce", found->teacher_ce}, {"hard", found->student_ce}};
    RETURN_IF_ERROR(file_.append(json.dump()));
    lines.push_back(absl::StrFormat("evaluation after step %d: %s", step, metrics::describe(*found, "data.eval")));
  }
  return lines;
}

absl::StatusOr<std::string> RunEvents::spoiled_step(const metrics::StepMetrics& record) {
  const double loss = record.means.metrics[losses::kLoss];
  SpikeDetector::Spike spike; // not an optional: GCC 12 warns that its value is uninitialised
  bool spiked = false;
  if (record.means.valid_tokens > 0) {
    const auto found = spikes_.next(loss);
    spiked = found.has_value();
    spike = found.value_or(spike);
  }
  if (!record.skipped && !spiked) {
    return std::string();
  }
  Json json;
  json[metrics::kStepKey] = record.step;
  json["event"] = record.skipped ? "non_finite_step" : "loss_spike";
  json["loss"] = number(loss);
  json["grad_norm"] = number(record.grad_norm);
  if (spiked) {
    json["median_before"] = spike.median;
    json["deviation_before"] = spike.deviation;
  }
  json["samples"] = {record.first_sample, record.first_sample + record.num_samples};
  RETURN_IF_ERROR(file_.append(json.dump()));
  std::string what = absl::StrFormat("gradients are not finite (loss %g); the step was skipped", loss);
  if (spiked && !record.skipped) {
    what = absl::StrFormat("loss %.4f, while the steps before had %.4f +- %.4f", loss, spike.median, spike.deviation);
  }
  return absl::StrFormat(
      "step %d: %s; samples %d to %d; `distill replay --config %s/config.yaml --step %d` repeats it", record.step, what,
      record.first_sample, record.first_sample + record.num_samples - 1, run_dir_, record.step);
}

} // namespace distill::trainer
