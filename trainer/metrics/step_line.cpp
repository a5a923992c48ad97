#include "trainer/metrics/step_line.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cmath>

namespace distill::metrics {
namespace {

// The mark behind the name of a number that is not exact: ">" of a lower bound, "~" of an estimate.
const char* mark(const LossMeans& means, losses::TokenMetric metric) {
  switch (means.quality[metric]) {
    case losses::MetricQuality::kLowerBound:
      return ">";
    case losses::MetricQuality::kEstimate:
      return "~";
    default:
      return "";
  }
}

// A mean over tokens; "-": no token had a target.
std::string mean_text(const LossMeans& means, losses::TokenMetric metric, const char* label, double scale = 1) {
  if (means.valid_tokens == 0) {
    return absl::StrCat(label, " -");
  }
  const std::string name = absl::StrCat(label, mark(means, metric));
  const double value = scale * means.metrics[metric];
  return scale == 1 ? absl::StrFormat("%s %.4f", name, value) : absl::StrFormat("%s %.1f%%", name, value);
}

// The loss for a narrow terminal, without a name.
std::string brief_loss(const LossMeans& means) {
  return means.valid_tokens == 0 ? "-"
                                 : absl::StrFormat("%s%.4g", mark(means, losses::kLoss), means.metrics[losses::kLoss]);
}

std::string kl_text(const LossMeans& means) {
  return means.valid_tokens == 0 ? "kl -"
                                 : absl::StrFormat(
                                       "kl%s %.4f/%.4f", mark(means, losses::kForwardKl),
                                       means.metrics[losses::kForwardKl], means.metrics[losses::kReverseKl]);
}

// Four digits, never with an exponent.
std::string speed_text(double tokens_per_second) {
  return tokens_per_second < 1000 ? absl::StrFormat("%.4g tok/s", tokens_per_second)
                                  : absl::StrFormat("%.0f tok/s", tokens_per_second);
}

std::string brief_speed_text(double tokens_per_second) {
  if (tokens_per_second < 1e4) {
    return speed_text(tokens_per_second);
  }
  return tokens_per_second < 1e6 ? absl::StrFormat("%.1fk tok/s", tokens_per_second / 1e3)
                                 : absl::StrFormat("%.1fM tok/s", tokens_per_second / 1e6);
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// The losses of a step or an evaluation; both show them alike.
std::vector<LineField> mean_fields(const LossMeans& means) {
  std::vector<LineField> fields{
      {"loss", 2, mean_text(means, losses::kLoss, "loss"), brief_loss(means)},
      {"ce", 11, mean_text(means, losses::kHard, "ce")}};
  if (means.has(losses::kTeacherCe)) {
    fields.push_back({"teacher_ce", 15, mean_text(means, losses::kTeacherCe, "teacher ce")});
  }
  if (means.has(losses::kSoft)) {
    fields.push_back({"soft", 14, mean_text(means, losses::kSoft, "soft")});
  }
  if (means.has(losses::kForwardKl)) {
    fields.push_back({"kl", 8, kl_text(means)});
  }
  if (means.has(losses::kAgreement)) {
    fields.push_back({"agree", 9, mean_text(means, losses::kAgreement, "agree", 100)});
  }
  return fields;
}

// What a line says of one of several teachers.
std::string teacher_text(const LossMeans& means) {
  return means.valid_tokens == 0
      ? "no tokens"
      : absl::StrFormat(
            "loss %s%.4f%s, %d tokens", mark(means, losses::kLoss), means.metrics[losses::kLoss],
            means.has(losses::kForwardKl) ? absl::StrCat(", ", kl_text(means)) : "", means.valid_tokens);
}

} // namespace

std::vector<LineField> step_fields(const StepMetrics& r) {
  std::vector<LineField> fields{
      {"step", 1, absl::StrFormat("step %d/%d", r.step, r.total_steps),
       absl::StrFormat("%d/%d", r.step, r.total_steps)}};
  for (LineField& field : mean_fields(r.means)) {
    fields.push_back(std::move(field));
  }
  for (const TeacherMeans& teacher : r.teachers) {
    if (teacher.means.valid_tokens > 0) {
      fields.push_back(
          {"teacher", 16,
           absl::StrFormat(
               "%s %.4f (%d)", teacher.name, teacher.means.metrics[losses::kLoss], teacher.means.valid_tokens)});
    }
  }
  fields.push_back({"grad_norm", 7, r.empty() ? "|g| -" : absl::StrFormat("|g| %.3g", r.grad_norm)});
  fields.push_back({"lr", 10, absl::StrFormat("lr %.2e", r.lr)});
  fields.push_back({"tok/s", 3, speed_text(r.tokens_per_second), brief_speed_text(r.tokens_per_second)});
  if (r.mfu_causal > 0) {
    fields.push_back({"mfu", 13, absl::StrFormat("mfu %.1f%%/%.1f%%", 100 * r.mfu_causal, 100 * r.mfu_full)});
  }
  // A GPU's is that of the tensors, as in the plan; a CPU's is that of the process, libraries and files included.
  fields.push_back(
      {"memory", 12,
       absl::StrFormat("%s %.2f GiB", r.peak_reserved_bytes > 0 ? "mem" : "rss", gib(r.peak_memory_bytes))});
  fields.push_back({"eta", 4, absl::StrCat("eta ", format_duration(r.eta_seconds)), brief_duration(r.eta_seconds)});
  if (r.skipped) {
    fields.push_back(
        {"skipped", 5, absl::StrFormat("SKIPPED (gradients not finite; %d so far)", r.skipped_total), "SKIPPED",
         Colour::kWarning});
  }
  if (r.empty()) {
    fields.push_back(
        {"empty", 5, absl::StrFormat("EMPTY (no token has a target; %d so far)", r.empty_steps), "EMPTY",
         Colour::kWarning});
  }
  return fields;
}

std::string step_line(const StepMetrics& record) {
  return whole_line(step_fields(record));
}

std::string eval_line(int64_t step, const LossMeans& means, absl::Span<const TeacherMeans> teachers) {
  std::string text =
      absl::StrFormat("eval after step %d  %s  (%d tokens)", step, whole_line(mean_fields(means)), means.valid_tokens);
  for (const TeacherMeans& teacher : teachers) {
    absl::StrAppend(&text, "; ", teacher.name, ": ", teacher_text(teacher.means));
  }
  return text;
}

} // namespace distill::metrics
