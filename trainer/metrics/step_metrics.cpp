#include "trainer/metrics/step_metrics.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trainer/metrics/json_lines.h"
#include "trainer/models/router_balance.h"

namespace distill::metrics {
namespace {

using Json = nlohmann::ordered_json;

struct MetricName {
  losses::TokenMetric metric;
  const char* name;
};
constexpr MetricName kMetricNames[] = {
    {losses::kLoss, "loss"},
    {losses::kHard, "hard"},
    {losses::kTeacherCe, "teacher_ce"},
    {losses::kSoft, "soft"},
    {losses::kZLoss, "z_loss"},
    {losses::kForwardKl, "forward_kl"},
    {losses::kReverseKl, "reverse_kl"},
    {losses::kStudentEntropy, "student_entropy"},
    {losses::kTeacherEntropy, "teacher_entropy"},
    {losses::kAgreement, "agreement"},
    {losses::kAccuracy, "accuracy"},
    {losses::kStudentLse, "student_lse"},
    {losses::kTeacherLse, "teacher_lse"},
};

// JSON has no NaN: values that are not finite are null.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

void add_means(Json& json, const LossMeans& means) {
  Json lower_bounds = Json::array(), estimates = Json::array();
  for (const MetricName& name : kMetricNames) {
    if (!means.has(name.metric)) {
      continue;
    }
    json[name.name] = number(means.metrics[name.metric]);
    const losses::MetricQuality quality = means.quality[name.metric];
    if (quality == losses::MetricQuality::kLowerBound) {
      lower_bounds.push_back(name.name);
    } else if (quality == losses::MetricQuality::kEstimate) {
      estimates.push_back(name.name);
    }
  }
  if (!lower_bounds.empty()) {
    json[kLowerBoundsKey] = lower_bounds;
  }
  if (!estimates.empty()) {
    json[kEstimatesKey] = estimates;
  }
  if (means.alignment) {
    json["boundary_share"] = number(means.alignment->boundary_share);
    json["span_share"] = number(means.alignment->span_share);
    json["span_loss"] = number(means.alignment->span_loss);
  }
  json["valid_tokens"] = means.valid_tokens;
  if (means.teacher_dropped_mass) {
    json["teacher_dropped_mass"] = *means.teacher_dropped_mass;
  }
}

// By the teachers' names. One that no token of the batch has is left out.
void add_teachers(Json& json, absl::Span<const TeacherMeans> teachers) {
  for (const TeacherMeans& teacher : teachers) {
    if (teacher.means.valid_tokens > 0) {
      add_means(json[kTeachersKey][teacher.name], teacher.means);
    }
  }
}

void add_float8(Json& json, const Float8Losses& losses) {
  for (size_t i = 0; i < losses.underflow.size(); ++i) {
    const auto operand = static_cast<models::Float8Operand>(i);
    if (losses.underflow[i]) {
      json[absl::StrCat("float8_underflow_", base::enum_name(operand))] = *losses.underflow[i];
    }
  }
  json["float8_bad_rows"] = losses.bad_rows;
  if (losses.gradient_cosine) {
    json["float8_gradient_cosine"] = number(*losses.gradient_cosine);
  }
}

void add_routers(Json& json, const RouterMeans& routers) {
  json["router_aux_loss"] = number(routers.aux_loss);
  json["router_entropy"] = number(routers.entropy);
  json["router_load"] = number(routers.load);
  json["router_highest_load"] = number(routers.highest_load);
  json["router_unused_experts"] = routers.unused_experts;
}

} // namespace

RouterMeans router_means(absl::Span<const double> sums, int64_t routers) {
  RouterMeans means;
  means.aux_loss = sums[models::kBalanceLoss] / sums[models::kBalancedMicroBatches];
  means.entropy = sums[models::kRouterEntropy] / sums[models::kRoutedTokens];
  const absl::Span<const double> visits = sums.subspan(models::kVisits);
  const size_t experts = visits.size() / static_cast<size_t>(routers);
  for (int64_t router = 0; router < routers; ++router) {
    const auto own = visits.subspan(static_cast<size_t>(router) * experts, experts);
    const double total = std::accumulate(own.begin(), own.end(), 0.0);
    const double load = *std::max_element(own.begin(), own.end()) * static_cast<double>(experts) / total;
    means.load += load / static_cast<double>(routers);
    means.highest_load = std::max(means.highest_load, load);
    means.unused_experts += std::count(own.begin(), own.end(), 0.0);
  }
  return means;
}

TeacherSums teacher_sums(
    absl::Span<const double> numbers, int64_t valid_tokens, const losses::MetricQualities& quality) {
  TeacherSums out;
  std::copy_n(numbers.begin(), out.sums.size(), out.sums.begin());
  std::copy_n(numbers.begin() + losses::kNumTokenMetrics, out.alignment.size(), out.alignment.begin());
  out.valid_tokens = valid_tokens;
  out.quality = quality;
  out.aligned = out.alignment[kPieces] > 0;
  return out;
}

LossMeans loss_means(
    absl::Span<const TeacherSums> teachers, int64_t valid_tokens, const losses::MetricQualities& quality) {
  std::array<double, losses::kNumTokenMetrics> all{};
  std::array<double, kNumAlignmentSums> alignment{};
  double compared = 0, aligned_tokens = 0; // tokens at which distributions are compared; tokens of aligned teachers
  for (const TeacherSums& teacher : teachers) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] += teacher.sums[i];
    }
    for (size_t i = 0; i < alignment.size(); ++i) {
      alignment[i] += teacher.alignment[i];
    }
    const auto tokens = static_cast<double>(teacher.valid_tokens);
    compared += teacher.aligned ? teacher.alignment[kCompared] : tokens;
    aligned_tokens += teacher.aligned ? tokens : 0;
  }
  LossMeans means = loss_means(all, valid_tokens, quality);
  if (aligned_tokens == 0 || valid_tokens == 0) {
    return means;
  }
  for (const losses::TokenMetric metric :
       {losses::kForwardKl, losses::kReverseKl, losses::kStudentEntropy, losses::kTeacherEntropy, losses::kAgreement,
        losses::kTeacherLse}) {
    means.metrics[metric] *= static_cast<double>(valid_tokens) / compared;
  }
  means.alignment = {
      alignment[kPieces] / aligned_tokens, alignment[kSpanTokens] / aligned_tokens,
      alignment[kSpanLoss] / alignment[kSpans]};
  means.teacher_dropped_mass = alignment[kDroppedMass] / alignment[kCompared];
  return means;
}

std::vector<TeacherMeans> means_of_teachers(
    const std::vector<std::string>& names, absl::Span<const TeacherSums> teachers) {
  std::vector<TeacherMeans> means;
  for (size_t i = 0; i < names.size() && names.size() == teachers.size(); ++i) {
    means.push_back({names[i], loss_means(teachers.subspan(i, 1), teachers[i].valid_tokens, teachers[i].quality)});
  }
  return means;
}

LossMeans loss_means(
    const std::array<double, losses::kNumTokenMetrics>& sums, int64_t valid_tokens,
    const losses::MetricQualities& quality) {
  LossMeans means;
  means.valid_tokens = valid_tokens;
  means.quality = quality;
  for (size_t i = 0; i < sums.size(); ++i) {
    const bool known = valid_tokens > 0 && quality[i] != losses::MetricQuality::kUnavailable;
    means.metrics[i] = known ? sums[i] / static_cast<double>(valid_tokens) : std::nan("");
  }
  return means;
}

Json step_json(const StepMetrics& r) {
  Json json;
  json[kStepKey] = r.step;
  add_means(json, r.means);
  add_teachers(json, r.teachers);
  json["grad_norm"] = r.empty() ? Json(nullptr) : number(r.grad_norm);
  json["skipped"] = r.skipped;
  json["skipped_total"] = r.skipped_total;
  json["empty_steps"] = r.empty_steps;
  if (r.float8) {
    add_float8(json, *r.float8);
  }
  if (r.routers) {
    add_routers(json, *r.routers);
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
    json["outside_allocator_bytes"] = r.outside_allocator_bytes;
  }
  if (r.gathers > 0) {
    json["gathers"] = r.gathers;
    json["gathered_bytes"] = r.gathered_bytes;
  }
  return json;
}

std::string means_json(const LossMeans& means, absl::Span<const TeacherMeans> teachers) {
  Json json;
  add_means(json, means);
  add_teachers(json, teachers);
  return json.dump();
}

Json eval_json(int64_t step, const LossMeans& means, absl::Span<const TeacherMeans> teachers) {
  Json json, values;
  add_means(values, means);
  add_teachers(values, teachers);
  json[kStepKey] = step;
  json[kEvalKey] = values;
  return json;
}

} // namespace distill::metrics
