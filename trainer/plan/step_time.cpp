#include "trainer/plan/step_time.h"

#include "trainer/config/dtypes.h"
#include "trainer/plan/link_time.h"
#include "trainer/plan/saved_bytes.h"

namespace distill::plan {
namespace {

// What gathers by copies cost the products that they overlap with, as a share of what NCCL's all-gathers do: 0.18 ms
// against 0.33 to 0.41 ms for a block of 436 MB on four H200.
constexpr double kCopiesCost = 0.5;

ModelRun student_run(const RunShape& shape) {
  return {shape.student, shape.environment.student_dtype, shape.tokens(), shape.config.data.seq_len};
}

std::vector<ModelRun> teacher_runs(const RunShape& shape, size_t teacher) {
  std::vector<ModelRun> runs;
  for (const models::ModelSource* model : shape.teachers[teacher].loaded()) {
    runs.push_back(
        {model->config, shape.environment_of(teacher).teacher_dtype, shape.teacher_tokens(), shape.teacher_seq_len()});
  }
  return runs;
}

bool has_frozen_head(const models::ModelConfig& student) {
  return student.adapter &&
      !student.adapter->trains_whole(student.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
}

// For each chunk: logits of both models, the row kernel, the two gradient products.
double head_seconds(const RunShape& shape, const Machine& machine, size_t number) {
  const auto tokens = static_cast<double>(shape.tokens());
  const trainer::TeacherSpec& spec = shape.teachers[number];
  const auto vocab = static_cast<double>(spec.columns(shape.student.vocab_size)); // of the logits
  const double element = element_bytes(shape.environment.student_dtype);
  const bool bf16_logits = shape.config.loss.logits_dtype == losses::LogitsDtype::kBFloat16;
  const double logit = bf16_logits ? 2 : std::max(4.0, element);
  const double hidden = static_cast<double>(shape.student.hidden_size);
  const auto teacher = static_cast<double>(spec.head_width());
  const auto chunks = static_cast<double>(shape.head.num_chunks(shape.tokens()));
  const auto groups = static_cast<double>(shape.head.num_groups(shape.tokens()));
  const double sides = teacher > 0 ? 2 : 1;
  const bool frozen = has_frozen_head(shape.student); // its gradient is not computed
  double flops = 2 * tokens * vocab * ((frozen ? 2 : 3) * hidden + teacher);
  if (spec.vocabulary().aligned) {
    // The labels over the whole vocabulary, the spans' tokens once more, at most, and the teacher's own tokens.
    flops += 2 * tokens * static_cast<double>(shape.student.vocab_size) * (frozen ? 3 : 4) * hidden +
        2 * static_cast<double>(shape.teacher_tokens()) * static_cast<double>(spec.model().config.vocab_size) * teacher;
  }
  // Reads of the weights are partly hidden by the products.
  constexpr double kWeightsRead = 0.6;
  const double bytes = kWeightsRead * chunks * vocab * (hidden + teacher) * element // for each chunk's logits
      + 2 * sides * tokens * vocab * logit // logits, written and read
      + (frozen ? 2 : 3) * tokens * vocab * element // their gradient, written once, read by the products
      + groups * vocab * hidden * (element + (frozen ? 0 : 8)); // weights for d_hidden, d_weight read and written
  return flops / machine.matmul_flops + bytes / machine.memory_bytes;
}

// Seconds for a micro-batch's gradients to be rounded into the shards: fp32 is read, bf16 written, and by all but the
// first one read.
double rounding_seconds(const RunShape& shape, const Machine& machine) {
  const double bytes =
      shape.rounds_gradients() ? 8 - 2 / static_cast<double>(std::max<int64_t>(1, shape.micro_batches)) : 0;
  double parameters = 0;
  for (const models::UnitLayout& layout : models::trained_layouts(shape.student)) {
    parameters += static_cast<double>(layout.numel) / static_cast<double>(shape.shard);
  }
  return bytes * parameters / machine.memory_bytes;
}

} // namespace

PassTimer::PassTimer(const RunShape& shape, const Machine& machine)
    : kinds_(shape.student.layers),
      blocks_(block_times(shape, machine, student_run(shape))),
      leaving_(machine.host_bytes / to_host_bytes(shape, machine)),
      copy_cost_(machine.copy_cost) {
  for (const BlockBytes& saved : saved_bytes(shape)) {
    copies_.push_back(
        {static_cast<double>(saved.all) / machine.host_bytes, static_cast<double>(saved.input) / machine.host_bytes});
  }
}

PassTimer::PassTime PassTimer::time(const std::vector<models::ActivationPolicy>& policies) const {
  PassTime time;
  const auto copy_of = [&](size_t i) {
    const Copies& copies = copies_[static_cast<size_t>(kinds_[i])];
    return models::is_offloaded(policies[i]) ? (models::keeps_input_only(policies[i]) ? copies.input : copies.all)
                                             : 0.0;
  };
  double now = 0, channel = 0;
  double leaving_ends = 0; // of the last offloaded block
  for (size_t i = 0; i < policies.size(); ++i) {
    now += block_of(i).forward;
    if (const double copy = leaving_ * copy_of(i); copy > 0) {
      now = std::max(now, leaving_ends); // until the last one's device memory is free
      channel = std::max(channel, now) + copy;
      leaving_ends = channel;
      time.copies += copy;
    }
  }
  time.forward = std::max(now, leaving_ends);
  now = channel = 0;
  double arrives = 0;
  for (size_t left = policies.size(); left > 0; --left) {
    const size_t i = left - 1;
    if (left == policies.size() && copy_of(i) > 0) { // no other block's backward pass hides this copy
      channel = now + copy_of(i);
      arrives = channel;
      time.copies += copy_of(i);
    }
    now = std::max(now, arrives);
    arrives = 0;
    if (i > 0 && copy_of(i - 1) > 0) { // overlaps with this block's backward pass
      channel = std::max(channel, now) + copy_of(i - 1);
      arrives = channel;
      time.copies += copy_of(i - 1);
    }
    now += block_of(i).backward + (models::keeps_input_only(policies[i]) ? block_of(i).rebuild : 0);
  }
  time.backward = now;
  const double lost = copy_cost_ * time.copies / 2;
  time.forward += lost;
  time.backward += lost;
  return time;
}

double StepTime::total() const {
  double sum = 0;
  for (const double seconds : phases) {
    sum += seconds;
  }
  return sum;
}

using metrics::Phase;

namespace {

double& at_phase(StepTime& time, Phase phase) {
  return time.phases[static_cast<size_t>(phase)];
}

// Bytes of the optimizer's state for each parameter, and of its gradient.
double state_bytes(const RunShape& shape) {
  return static_cast<double>(config::state_bytes(shape.config.optimizer));
}
double gradient_bytes(const RunShape& shape) {
  return static_cast<double>(config::gradient_bytes(shape.config.optimizer));
}

double teacher_seconds(const RunShape& shape, const Machine& machine, size_t number) {
  const trainer::TeacherSpec& spec = shape.teachers[number];
  double seconds = static_cast<double>(shape.row_tokens(number) * spec.row_bytes()) / machine.host_bytes;
  for (const ModelRun& run : teacher_runs(shape, number)) {
    const std::vector<BlockTime> teacher = block_times(shape, machine, run);
    for (size_t kind = 0; kind < teacher.size(); ++kind) {
      seconds += static_cast<double>(run.config.count_of(static_cast<int64_t>(kind))) * teacher[kind].forward;
    }
  }
  if (spec.blocks() > 0 && shape.teacher_stream) { // the student's tokens' hidden states are read and written
    seconds += 2 * static_cast<double>(shape.tokens() * spec.head_width()) *
        element_bytes(shape.environment_of(number).teacher_dtype) / machine.memory_bytes;
  }
  return seconds;
}

// Seconds of the updates of all units on the device. AdamW reads and writes master and moments, reads the gradient,
// which the norm has read too, and writes the compute copy where gathers do not make it. Float8 weights are made from
// the master weights, which several ranks read twice.
double update_seconds(const RunShape& shape, const Machine& machine) {
  const double element = element_bytes(shape.environment.student_dtype);
  double parameters = 0, float8_parameters = 0;
  for (const models::UnitLayout& layout : models::trained_layouts(shape.student)) {
    const double shard = static_cast<double>(layout.numel) / static_cast<double>(shape.shard);
    const bool in_float8 =
        layout.kind == models::UnitKind::kBlock && !shape.student.adapter && shape.student.float8.any_of(layout.block);
    parameters += shard;
    float8_parameters += in_float8 ? shard : 0;
  }
  const double copy = (shape.ranks() == 1 || shape.copies()) && element < 4 ? element : 0;
  return (parameters * (2 * state_bytes(shape) + 2 * gradient_bytes(shape)) + (parameters - float8_parameters) * copy +
          float8_parameters * (shape.shard == 1 ? 5 : 9)) /
      machine.memory_bytes;
}

} // namespace

StepTimer::StepTimer(const RunShape& shape, const Machine& machine, const GatherPrediction& gathers)
    : shape_(shape), machine_(machine), gathers_(gathers), pass_(shape, machine) {
  const auto micro = static_cast<double>(shape.micro_batches);
  const auto hidden = static_cast<double>(shape.student.hidden_size);
  const double element = element_bytes(shape.environment.student_dtype);
  rounding_ = rounding_seconds(shape, machine);
  around_ = static_cast<double>(shape.tokens()) * hidden * element * 6 / machine.memory_bytes;
  at_phase(fixed_, Phase::kTeacher) =
      micro * shape.mean_of_teachers([&](size_t teacher) { return teacher_seconds(shape, machine, teacher); });
  at_phase(fixed_, Phase::kHead) =
      micro * shape.mean_of_teachers([&](size_t teacher) { return head_seconds(shape, machine, teacher); });
  at_phase(fixed_, Phase::kOptimizer) = update_seconds(shape, machine);
  const std::vector<BlockTime> student = block_times(shape, machine, student_run(shape));
  for (size_t kind = 0; kind < student.size(); ++kind) {
    reduces_ += static_cast<double>(shape.student.count_of(static_cast<int64_t>(kind))) * student[kind].reduce;
  }
  for (const models::UnitLayout& unit : models::trained_layouts(shape.student)) {
    const bool is_block = unit.kind == models::UnitKind::kBlock;
    reduces_ += is_block ? 0 : unit_reduce(shape, machine, static_cast<double>(unit.numel));
    states_.push_back({static_cast<double>(unit.numel) / static_cast<double>(shape.shard), is_block});
  }
}

// Communication overlaps with the compute stream and takes multiprocessors and bandwidth from it; the part that is
// longer than the phase is exposed.
metrics::PhaseSeconds StepTimer::add_communication(StepTime& time) const {
  metrics::PhaseSeconds waits{};
  if (shape_.ranks() == 1) {
    return waits;
  }
  const double gather_cost = machine_.overlap_cost * (shape_.copies() ? kCopiesCost : 1);
  const auto gather_of = [&](Phase phase) {
    return gather_seconds(shape_, machine_, gathers_.bytes[static_cast<size_t>(phase)]);
  };
  const auto overlap = [&](Phase phase, double gathering, double reducing) {
    double& compute = at_phase(time, phase);
    const double slower = gather_cost * gathering + machine_.overlap_cost * reducing;
    const double lost = std::max({0.0, slower, gathering + reducing - compute});
    waits[static_cast<size_t>(phase)] = std::max(0.0, lost - slower);
    time.communication += gathering + reducing;
    time.exposed += lost;
    compute += lost;
  };
  // The next step's first units are gathered from the optimizer's phase on.
  overlap(Phase::kTeacher, gather_of(Phase::kTeacher) + gather_of(Phase::kOptimizer), 0);
  overlap(Phase::kForward, gather_of(Phase::kForward) + gather_of(Phase::kHead), 0);
  overlap(Phase::kBackward, gather_of(Phase::kBackward), static_cast<double>(shape_.micro_batches) * reduces_);
  return waits;
}

// From the end of a step on, the state in host memory passes through the device, unit by unit, less what has arrived in
// the stages before; at the same time the CPU updates its units, whose gradients it has got during the backward pass.
// The next step's teacher runs meanwhile, and its forward pass waits at each unit whose update is not there yet.
// `leaving`: seconds of the activations' copies to the host in a forward pass, on the same link.
void StepTimer::add_updates(const std::vector<models::StatePlace>& places, double leaving, StepTime& time) const {
  if (std::none_of(places.begin(), places.end(), models::is_on_host)) {
    return;
  }
  const auto micro = static_cast<double>(shape_.micro_batches);
  const double teacher = at_phase(time, Phase::kTeacher) / micro, forward = at_phase(time, Phase::kForward) / micro;
  const double bandwidth = both_ways_bytes(shape_, machine_), state = state_bytes(shape_);
  const double weight = element_bytes(shape_.environment.student_dtype), gradient = gradient_bytes(shape_);
  const auto sharing = static_cast<double>(std::min(shape_.ranks(), shape_.ranks_per_node));
  const double cpu_bytes = machine_.host_update_bytes > 0 ? machine_.host_update_bytes : machine_.host_store_bytes;
  const double cpu_parameters = cpu_bytes / sharing / (2 * state + gradient + weight); // in a second
  const std::vector<models::StatePlace> units = models::places_of_units(places, shape_.student.tie_word_embeddings);
  double through = 0, largest = 0; // parameters whose state passes through the device
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (units[unit] == models::StatePlace::kHost) {
      through += states_[unit].parameters;
      largest = std::max(largest, states_[unit].parameters);
    }
  }
  const int64_t piece = sharding::StateMemory::piece_numel(static_cast<int64_t>(largest));
  const double staged = std::min(through, static_cast<double>(shape_.state_stages * piece)) * state;
  double now = teacher, passed = 0, last = 0; // `passed`: bytes that are copied to the device
  double computed = 0; // seconds of the CPU
  double returned = 0; // bytes that are copied from the device
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    const double parameters = states_[unit].parameters;
    if (models::is_on_host(units[unit])) {
      const bool by_cpu = units[unit] == models::StatePlace::kCpu;
      passed += parameters * (by_cpu ? weight : state);
      returned += parameters * (by_cpu ? gradient : state);
      computed += by_cpu ? parameters / cpu_parameters : 0;
      const double copied = std::max(0.0, passed - staged) / bandwidth;
      const double updated = by_cpu ? std::max(computed, copied) : copied;
      last = std::max(last, updated);
      now = std::max(now, updated);
    }
    now += states_[unit].is_block ? forward / static_cast<double>(places.size()) : 0;
  }
  time.copies += (passed + returned) / bandwidth;
  at_phase(time, Phase::kOptimizer) += machine_.copy_cost * std::max(passed, returned) / bandwidth +
      std::max(0.0, std::max(now, last + leaving) - (teacher + forward));
}

StepTime StepTimer::time(
    const std::vector<models::ActivationPolicy>& policies, const std::vector<models::StatePlace>& places) const {
  const auto micro = static_cast<double>(shape_.micro_batches);
  const PassTimer::PassTime pass = pass_.time(policies);
  StepTime time = fixed_;
  at_phase(time, Phase::kForward) = micro * (pass.forward + around_);
  at_phase(time, Phase::kBackward) = micro * (pass.backward + 2 * around_ + rounding_);
  time.copies = micro * pass.copies;
  const metrics::PhaseSeconds waits = add_communication(time);
  add_updates(places, pass.copies / 2, time);
  // As metrics.jsonl has it: what is waited for is no part of the phase that waits.
  for (size_t i = 0; i < waits.size(); ++i) {
    time.phases[i] -= waits[i];
    at_phase(time, Phase::kCommunication) += waits[i];
  }
  time.tokens_per_second = static_cast<double>(shape_.tokens() * shape_.ranks()) * micro / time.total();
  return time;
}

StepTime predict_time(const RunShape& shape, const Machine& machine, const GatherPrediction& gathers) {
  return StepTimer(shape, machine, gathers).time(shape.policies, shape.places);
}

} // namespace distill::plan
