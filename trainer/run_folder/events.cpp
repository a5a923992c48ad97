#include "trainer/run_folder/events.h"

#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/run_folder/records.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWindow = 64;
constexpr size_t kFewest = 16;
constexpr double kLeastDeviation = 0.01; // of the mean

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

absl::StatusOr<RunEvents> RunEvents::open(const std::string& run_dir, int64_t last_step, double spike_sigmas) {
  ASSIGN_OR_RETURN(auto file, metrics::JsonLines::open(run_dir + "/events.jsonl", {last_step, last_step}));
  RunEvents events(run_dir, std::move(file), spike_sigmas);
  ASSIGN_OR_RETURN(const auto losses, recorded_losses(run_dir, last_step));
  for (const double loss : losses) {
    events.spikes_.next(loss);
  }
  return events;
}

absl::StatusOr<std::string> RunEvents::step(const metrics::StepRecord& record) {
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
  json["step"] = record.step;
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
