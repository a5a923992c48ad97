#pragma once

#include <absl/types/span.h>

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "losses/teacher_kind.h"
#include "losses/token_metrics.h"
#include "trainer/metrics/alignment_sums.h"
#include "trainer/metrics/phase_timer.h"
#include "trainer/models/float8_counts.h"

namespace distill::metrics {

// How the texts of student and teacher met, of a teacher with a tokenizer of its own.
struct AlignmentMeans {
  double boundary_share = 0; // of the tokens with a target, those where both have a boundary
  double span_share = 0; // of the same, those in spans
  double span_loss = 0; // mean over spans; NaN: there are none
};

// Means of all numbers that the loss head returns for a token, over the valid tokens of a global batch or of a whole
// evaluation.
struct LossMeans {
  std::array<double, losses::kNumTokenMetrics> metrics{};
  int64_t valid_tokens = 0;
  losses::MetricQualities quality{}; // what each of them is for the run's teacher and loss; all exact by default
  // Of teachers with a tokenizer of their own. What compares two distributions is then the mean over the places where
  // they are compared, and the loss and the cross-entropies are means over tokens as always.
  std::optional<AlignmentMeans> alignment;
  // Of an evaluation, or where there is an alignment: mean probability, at temperature 1, of the teacher's tokens that
  // have no part in the loss; nullopt: there are none, or the teacher's hidden states are not known.
  std::optional<double> teacher_dropped_mass;

  bool has(losses::TokenMetric metric) const {
    return quality[metric] != losses::MetricQuality::kUnavailable;
  }
};

// Divides sums by the number of valid tokens. No means are known if it is zero: they are NaN, null in JSON; and those
// that are not available are NaN, too.
LossMeans loss_means(
    const std::array<double, losses::kNumTokenMetrics>& sums, int64_t valid_tokens,
    const losses::MetricQualities& quality);

// What the loss head adds up over the tokens that have one teacher.
struct TeacherSums {
  std::array<double, losses::kNumTokenMetrics> sums{};
  int64_t valid_tokens = 0;
  losses::MetricQualities quality{};
  std::array<double, kNumAlignmentSums> alignment{};
  bool aligned = false; // the teacher has a tokenizer of its own
};
// `numbers`: kNumSums of them.
TeacherSums teacher_sums(
    absl::Span<const double> numbers, int64_t valid_tokens, const losses::MetricQualities& quality);
// The means over the tokens of all teachers.
LossMeans loss_means(
    absl::Span<const TeacherSums> teachers, int64_t valid_tokens, const losses::MetricQualities& quality);

// The means over the tokens that have one of several teachers.
struct TeacherMeans {
  std::string name;
  LossMeans means;
};
// Empty unless the teachers have names.
std::vector<TeacherMeans> means_of_teachers(
    const std::vector<std::string>& names, absl::Span<const TeacherSums> teachers);

// The losses by rounding to float8 in one step of a student that is trained in it.
struct Float8Losses {
  // By Float8Operand: share of the values that became zero, in a sample of rows; nullopt: no such operand was rounded.
  std::array<std::optional<double>, models::kFloat8Operands> underflow{};
  double bad_rows = 0; // rows of operands (tokens) with an infinite value or NaN, of which float8 leaves nothing
  std::optional<double> gradient_cosine; // between its gradients and those in the compute dtype (float8.shadow_every)
};

// The routers of a student with experts in one step, over all tokens that are no padding.
struct RouterMeans {
  double aux_loss = 0; // of balance, before its coefficient; mean over micro-batches (models/router_balance.h)
  double entropy = 0; // of a router's probabilities, nats; mean over tokens and layers
  double load = 0; // the tokens of a layer's busiest expert, divided by the mean over its experts; mean over layers
  double highest_load = 0; // of the layer in which it is largest
  int64_t unused_experts = 0; // those of all layers that no token visited
};
// `sums`: models::RouterSum of `routers` layers.
RouterMeans router_means(absl::Span<const double> sums, int64_t routers);

// The numbers of one optimizer step, known after it has run.
struct StepMetrics {
  int64_t step = 0; // counted from 1
  int64_t total_steps = 0;
  LossMeans means;
  std::vector<TeacherMeans> teachers; // of several teachers, the means of each
  double grad_norm = 0; // before clipping
  bool skipped = false; // the gradients were not finite, and the step changed nothing
  int64_t skipped_total = 0;
  int64_t empty_steps = 0; // so far, this one included: see empty()
  std::optional<Float8Losses> float8; // nullopt: the student is not in float8
  std::optional<RouterMeans> routers; // nullopt: the student has no experts
  double lr = 0; // of the schedule
  int64_t first_sample = 0, num_samples = 0; // of the global batch
  int64_t tokens = 0; // since the start of the run, padding included
  double seconds = 0; // duration of this step
  PhaseSeconds phases{};
  int64_t teacher_read_bytes = 0; // rows of a teacher's cache that this rank has read since the previous step
  double teacher_read_seconds = 0; // how long its data thread took for that, while other steps ran
  double tokens_per_second = 0;
  double mfu_causal = 0, mfu_full = 0; // model FLOPs utilisation, fractions (metrics/flops.h); 0: unknown device
  int64_t peak_memory_bytes = 0; // of tensors; on the CPU, of the process
  int64_t peak_reserved_bytes = 0; // by the caching allocator; 0: CPU
  int64_t outside_allocator_bytes = 0; // in use on the device now, other processes' included; 0: CPU
  int64_t gathers = 0; // whole units that rank 0 gathered from the shards of all ranks; 0: one process
  int64_t gathered_bytes = 0; // of these units
  double eta_seconds = 0; // until the end of the run

  // No token of the batch had a target: there was nothing to learn, and the step changed nothing.
  bool empty() const {
    return means.valid_tokens == 0;
  }
};

// A line of metrics.jsonl: without means that are not available (losses/teacher_kind.h), and with the names of those
// that are lower bounds or estimates. The numbers that are added here are also TensorBoard's (metrics/tensorboard.h).
nlohmann::ordered_json step_json(const StepMetrics& record);

// The means alone as a JSON object, with the same names.
std::string means_json(const LossMeans& means, absl::Span<const TeacherMeans> teachers = {});

// The line of metrics.jsonl of an evaluation after `step` steps.
nlohmann::ordered_json eval_json(int64_t step, const LossMeans& means, absl::Span<const TeacherMeans> teachers = {});

} // namespace distill::metrics
