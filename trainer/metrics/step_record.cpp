#include "trainer/metrics/step_record.h"

#include <absl/strings/str_cat.h>

#include <nlohmann/json.hpp>

#include "trainer/metrics/json_lines.h"

namespace distill::metrics {
namespace {

using Json = nlohmann::ordered_json;

struct MetricName {
  losses::TokenMetric metric;
  const char* name;
  bool needs_teacher;
};
constexpr MetricName kMetricNames[] = {
    {losses::kLoss, "loss", false},
    {losses::kHard, "hard", false},
    {losses::kTeacherCe, "teacher_ce", true},
    {losses::kSoft, "soft", true},
    {losses::kZLoss, "z_loss", false},
    {losses::kForwardKl, "forward_kl", true},
    {losses::kReverseKl, "reverse_kl", true},
    {losses::kStudentEntropy, "student_entropy", false},
    {losses::kTeacherEntropy, "teacher_entropy", true},
    {losses::kAgreement, "agreement", true},
    {losses::kAccuracy, "accuracy", false},
    {losses::kStudentLse, "student_lse", false},
    {losses::kTeacherLse, "teacher_lse", true},
};

// JSON has no NaN: values that are not finite are null.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

void add_means(Json& json, const LossMeans& means) {
  for (const MetricName& name : kMetricNames) {
    if (means.has_teacher || !name.needs_teacher) {
      json[name.name] = number(means.metrics[name.metric]);
    }
  }
  json["valid_tokens"] = means.valid_tokens;
}

void add_float8(Json& json, const Float8Losses& losses) {
  for (size_t i = 0; i < losses.underflow.size(); ++i) {
    const auto operand = static_cast<models::Float8Operand>(i);
    json[absl::StrCat("float8_underflow_", base::enum_name(operand))] = losses.underflow[i];
  }
  json["float8_bad_rows"] = losses.bad_rows;
  if (losses.gradient_cosine) {
    json["float8_gradient_cosine"] = number(*losses.gradient_cosine);
  }
}

} // namespace

LossMeans loss_means(const std::array<double, losses::kNumTokenMetrics>& sums, int64_t valid_tokens, bool has_teacher) {
  LossMeans means;
  means.valid_tokens = valid_tokens;
  means.has_teacher = has_teacher;
  for (size_t i = 0; i < sums.size(); ++i) {
    means.metrics[i] = valid_tokens > 0 ? sums[i] / static_cast<double>(valid_tokens) : std::nan("");
  }
  return means;
}

Json step_json(const StepRecord& r) {
  Json json;
  json[kStepKey] = r.step;
  add_means(json, r.means);
  json["grad_norm"] = r.empty() ? Json(nullptr) : number(r.grad_norm);
  json["skipped"] = r.skipped;
  json["skipped_total"] = r.skipped_total;
  json["empty_steps"] = r.empty_steps;
  if (r.float8) {
    add_float8(json, *r.float8);
  }
  json["lr"] = r.lr;
  json["tokens"] = r.tokens;
  json["seconds"] = r.seconds;
  for (size_t i = 0; i < r.phases.size(); ++i) {
    json["phase_seconds"][phase_name(static_cast<Phase>(i))] = r.phases[i];
  }
  if (r.teacher_read_seconds > 0) {
    json["teacher_read"] = {
        {"bytes", r.teacher_read_bytes},
        {"bytes_per_second", static_cast<double>(r.teacher_read_bytes) / r.teacher_read_seconds}};
  }
  json["tokens_per_second"] = number(r.tokens_per_second);
  if (r.mfu_causal > 0) {
    json["mfu_causal"] = r.mfu_causal;
    json["mfu_full"] = r.mfu_full;
  }
  json["peak_memory_bytes"] = r.peak_memory_bytes;
  if (r.peak_reserved_bytes > 0) {
    json["peak_reserved_bytes"] = r.peak_reserved_bytes;
  }
  if (r.gathers > 0) {
    json["gathers"] = r.gathers;
    json["gathered_bytes"] = r.gathered_bytes;
  }
  return json;
}

std::string means_json(const LossMeans& means) {
  Json json;
  add_means(json, means);
  return json.dump();
}

Json eval_json(int64_t step, const LossMeans& means) {
  Json json, values;
  add_means(values, means);
  json[kStepKey] = step;
  json[kEvalKey] = values;
  return json;
}

} // namespace distill::metrics
