#include "trainer/plan/plan.h"

#include "data/base/status_macros.h"
#include "trainer/plan/advice.h"
#include "trainer/plan/memory_limits.h"
#include "trainer/plan/saved_bytes.h"
#include "trainer/plan/solver.h"

namespace distill::plan {
namespace {

constexpr double kGiB = 1 << 30;

int64_t gib_to_bytes(double gib) {
  return static_cast<int64_t>(gib * kGiB);
}

LimitsExceeded limits_exceeded(const Plan& plan, int64_t host_bytes) {
  const MemoryPrediction& memory = plan.memory;
  LimitsExceeded exceeded;
  if (plan.device_bytes > 0) {
    exceeded.tensors = memory.peak() + memory.communicators + memory.context - plan.device_bytes;
    exceeded.device = memory.device_bytes() > plan.device_bytes;
  }
  if (plan.budget_bytes > 0) {
    exceeded.tensors = std::max(exceeded.tensors, memory.peak() - plan.budget_bytes);
  }
  exceeded.device = exceeded.device || exceeded.tensors > 0;
  exceeded.host = host_bytes > 0 && memory.host_bytes() > host_bytes;
  return exceeded;
}

// Predicts memory, time and overflows for the shape's policies.
void evaluate(Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  plan.memory = predict_memory(plan.shape, blocks);
  plan.time = predict_time(plan.shape, plan.machine, plan.memory.gathers);
  plan.overflows = overflows_of(plan.memory, {plan.budget_bytes, plan.device_bytes, host_bytes});
}

void choose_policies(Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  const auto with = [&](const std::vector<models::ActivationPolicy>& policies) { plan.shape.policies = policies; };
  const PassTimer timer(plan.shape, plan.machine);
  const Solution solution = fastest_mix(
      plan.shape.student.layers, saved_bytes(plan.shape),
      [&](const std::vector<models::ActivationPolicy>& policies) { return timer.seconds(policies); },
      [&](const std::vector<models::ActivationPolicy>& policies) {
        with(policies);
        plan.memory = predict_memory(plan.shape, blocks);
        return limits_exceeded(plan, host_bytes);
      });
  plan.mixes = solution.mixes;
  with(
      solution.policies.empty()
          ? std::vector<models::ActivationPolicy>(
                static_cast<size_t>(plan.shape.student.num_layers()), models::ActivationPolicy::kOffloadInput)
          : solution.policies);
}

// Takes as many slots as fit and save gathers: every further one saves some until all blocks stay gathered.
void add_slots(Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  const auto evaluate_with = [&](int64_t slots) {
    plan.shape.config.parallel.slots = slots;
    evaluate(plan, host_bytes, blocks);
  };
  int64_t most = plan.shape.config.parallel.slots; // that fit
  int64_t beyond = std::max(most, plan.shape.gathered_blocks()) + 1;
  while (beyond - most > 1) {
    const int64_t middle = most + (beyond - most) / 2;
    evaluate_with(middle);
    (plan.fits() ? most : beyond) = middle;
  }
  evaluate_with(most);
}

absl::StatusOr<Plan> plan_on(const PlanRequest& request, const Target& target, BlockRecorder& blocks) {
  const config::MemorySection& memory = request.config.memory;
  Plan plan;
  ASSIGN_OR_RETURN(
      plan.shape, run_shape(request.config, request.student, request.teacher, target, request.teacher_stream));
  plan.machine = request.machine;
  plan.automatic = std::holds_alternative<config::AutomaticPolicies>(memory.activation);
  plan.budget_bytes = gib_to_bytes(memory.budget_gib);
  plan.device_bytes =
      usable_bytes(memory, request.device_bytes > 0 ? request.device_bytes : gib_to_bytes(request.machine.memory_gib));
  if (plan.automatic) {
    choose_policies(plan, request.host_bytes, blocks);
  }
  evaluate(plan, request.host_bytes, blocks);
  if (request.config.parallel.slots == config::kAutomatic && plan.shape.shard > 1 && plan.fits()) {
    add_slots(plan, request.host_bytes, blocks);
  }
  return plan;
}

// Tells whether a plan has reason to do without the memory that gathers by copies take.
bool lacks_memory(const Plan& plan) {
  const auto keeps = [](models::ActivationPolicy policy) { return policy == models::ActivationPolicy::kKeep; };
  return !plan.fits() ||
      (plan.automatic && !std::all_of(plan.shape.policies.begin(), plan.shape.policies.end(), keeps));
}

// If parallel.gather is auto, takes copies, unless they do not fit or the memory that they take is worth more
// elsewhere.
absl::StatusOr<Plan> plan_alone(const PlanRequest& request, BlockRecorder& blocks) {
  ASSIGN_OR_RETURN(Plan plan, plan_on(request, request.target, blocks));
  if (request.config.parallel.gather != config::Gather::kAuto || !plan.shape.copies() || !lacks_memory(plan)) {
    return plan;
  }
  Target target = request.target;
  target.peer_memory = false;
  ASSIGN_OR_RETURN(Plan other, plan_on(request, target, blocks));
  const bool better = other.fits() && (!plan.fits() || other.time.total() < plan.time.total());
  return better || (!plan.fits() && !other.fits()) ? other : plan;
}

} // namespace

absl::StatusOr<Plan> make_plan(const PlanRequest& request) {
  BlockRecorder blocks;
  ASSIGN_OR_RETURN(Plan plan, plan_alone(request, blocks));
  if (!plan.fits()) {
    plan.changes =
        cheapest_changes(request, [&blocks](const PlanRequest& changed) { return plan_alone(changed, blocks); });
  }
  return plan;
}

absl::StatusOr<Machine> machine_of(const config::Config& config, bool cuda) {
  if (!config.memory.machine.empty()) {
    return read_machine(config.memory.machine);
  }
  return cuda ? h200() : generic_cpu();
}

} // namespace distill::plan
