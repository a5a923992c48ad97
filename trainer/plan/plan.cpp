#include "trainer/plan/plan.h"

#include <bit>
#include <numeric>
#include <set>

#include "data/base/status_macros.h"
#include "trainer/config/dtypes.h"
#include "trainer/plan/advice.h"
#include "trainer/plan/memory_limits.h"
#include "trainer/plan/saved_bytes.h"
#include "trainer/plan/solver.h"
#include "trainer/sharding/shard_range.h"

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
    exceeded.tensors = memory.peak() + memory.outside.total() + memory.page_tables() - plan.device_bytes;
    exceeded.device = memory.device_bytes() > plan.device_bytes;
    // The allocator's slack differs from mix to mix; a mix whose tensors need little less will hardly fit.
    exceeded.tensors = std::max(exceeded.tensors, (memory.device_bytes() - plan.device_bytes) / 2);
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
  std::vector<std::string> overflows;
  plan.engine_turn = plan_engine_turn(plan.shape, plan.device_bytes, plan.memory, overflows);
  plan.overflows = overflows_of(plan.memory, {plan.budget_bytes, plan.device_bytes, host_bytes});
  plan.overflows.insert(plan.overflows.end(), overflows.begin(), overflows.end());
}

// A plan with room fits, and no step returns the allocator's free memory to the device to take it again. That would
// cost time which is not predicted, so that nothing is chosen that needs it if there is something else.
bool has_room(const Plan& plan) {
  return plan.fits() && plan.memory.give_backs == 0;
}

Placement placement_of(const RunShape& shape, std::vector<models::StatePlace> places) {
  const std::vector<models::UnitLayout> layouts = models::trained_layouts(shape.student);
  const auto units = models::places_of_units(places, shape.student.tie_word_embeddings);
  const int64_t parameter = config::state_bytes(shape.config.optimizer);
  Placement placement{std::move(places)};
  for (size_t unit = 0; unit < layouts.size(); ++unit) {
    const int64_t shard = layouts[unit].numel / shape.shard;
    (models::is_on_host(units[unit]) ? placement.host_bytes : placement.device_bytes) += parameter * shard;
    placement.host_bytes +=
        units[unit] == models::StatePlace::kCpu ? config::gradient_bytes(shape.config.optimizer) * shard : 0;
  }
  return placement;
}

// Lets the CPU update as many of the blocks on the host as make the step shortest, for each placement.
void share_with_cpu(const StepTimer& timer, const RunShape& shape, Choices& choices) {
  const auto blocks = static_cast<int64_t>(choices.kinds.size());
  const std::vector<models::ActivationPolicy> policies = choices.policies.empty()
      ? std::vector<models::ActivationPolicy>(choices.kinds.size(), models::ActivationPolicy::kKeep)
      : choices.policies;
  for (int64_t on_host = 1; on_host < static_cast<int64_t>(choices.placements.size()); ++on_host) {
    Placement& placement = choices.placements[static_cast<size_t>(on_host)];
    double least = timer.time(policies, placement.places).total();
    for (int64_t by_cpu = 1; by_cpu <= on_host; ++by_cpu) {
      std::vector<models::StatePlace> places = state_placement(blocks, on_host, by_cpu);
      if (const double seconds = timer.time(policies, places).total(); seconds < least) {
        least = seconds;
        placement = placement_of(shape, std::move(places));
      }
    }
  }
}

// Chooses what memory.activation and memory.optimizer leave open. If nothing fits, takes what leaves least on the
// device.
void choose_mix(Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  RunShape& shape = plan.shape;
  const auto all_blocks = [&](auto policy) {
    return std::vector<decltype(policy)>(static_cast<size_t>(shape.student.num_layers()), policy);
  };
  Choices choices{.kinds = shape.student.layers, .saved = saved_bytes(shape), .policies = shape.policies};
  if (!plan.automatic_state) {
    choices.placements = {placement_of(shape, shape.places)};
  } else if (shape.student.float8.any() && !shape.student.adapter) {
    choices.placements = {placement_of(shape, all_blocks(models::StatePlace::kDevice))};
  } else {
    for (std::vector<models::StatePlace>& places : state_placements(shape.student.num_layers())) {
      choices.placements.push_back(placement_of(shape, std::move(places)));
    }
  }
  const auto with = [&](const Mix& mix) {
    shape.policies = mix.policies;
    shape.places = choices.placements[mix.placement].places;
  };
  if (choices.policies.empty()) {
    with({all_blocks(models::ActivationPolicy::kKeep), 0});
  } else {
    with({choices.policies, 0});
  }
  // Every mix gathers alike.
  const StepTimer timer(shape, plan.machine, predict_memory(shape, blocks).gathers);
  if (plan.automatic_state && shape.cuda() && plan.machine.host_update_bytes > 0) {
    share_with_cpu(timer, shape, choices);
  }
  bool some_fit_without_room = false;
  const auto search = [&](bool without_room) {
    return fastest_mix(
        choices,
        [&](const Mix& mix) { return timer.time(mix.policies, choices.placements[mix.placement].places).total(); },
        [&](const Mix& mix) {
          with(mix);
          plan.memory = predict_memory(shape, blocks);
          LimitsExceeded exceeded = limits_exceeded(plan, host_bytes);
          if (plan.memory.give_backs > 0 && !without_room) {
            some_fit_without_room = some_fit_without_room || exceeded.fits();
            exceeded.device = true;
          }
          return exceeded;
        });
  };
  Solution solution = search(/*without_room=*/false);
  if (solution.mix.policies.empty() && some_fit_without_room) {
    solution = search(/*without_room=*/true);
  }
  plan.mixes = solution.mixes;
  if (!solution.mix.policies.empty()) {
    with(solution.mix);
  } else {
    with(
        {choices.policies.empty() ? all_blocks(models::ActivationPolicy::kOffloadInput) : choices.policies,
         choices.placements.size() - 1});
  }
}

// Raises a number of buffers, with which the plan fits, to the largest one below `beyond` that fits.
void take_most(int64_t& number, int64_t beyond, Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  const auto evaluate_with = [&](int64_t value) {
    number = value;
    evaluate(plan, host_bytes, blocks);
  };
  int64_t most = number; // that fits
  while (beyond - most > 1) {
    const int64_t middle = most + (beyond - most) / 2;
    evaluate_with(middle);
    (has_room(plan) ? most : beyond) = middle;
  }
  evaluate_with(most);
}

// Counts the pieces in which the state passes through the device.
int64_t pieces_on_host(const RunShape& shape) {
  const sharding::StateMemory state = shape.state(nullptr);
  const std::vector<models::UnitLayout> layouts = models::trained_layouts(shape.student);
  std::vector<int64_t> shards; // on the host
  for (size_t unit = 0; unit < layouts.size(); ++unit) {
    if (state.place(static_cast<int64_t>(unit)) == models::StatePlace::kHost) {
      shards.push_back(sharding::shard_range(layouts[unit].numel, 0, shape.shard).numel);
    }
  }
  const int64_t piece = sharding::StateMemory::piece_numel(*std::max_element(shards.begin(), shards.end()));
  return std::accumulate(shards.begin(), shards.end(), int64_t{0}, [&](int64_t pieces, int64_t shard) {
    return pieces + (shard + piece - 1) / piece;
  });
}

// Takes as many stages for state from the host as fit, if the next step waits for updates: what is in a stage when the
// update begins need not be waited for.
void add_stages(Plan& plan, int64_t host_bytes, BlockRecorder& blocks) {
  RunShape more = plan.shape;
  more.state_stages = pieces_on_host(plan.shape);
  if (predict_time(more, plan.machine, plan.memory.gathers).total() < plan.time.total()) {
    take_most(plan.shape.state_stages, more.state_stages + 1, plan, host_bytes, blocks);
  }
}

absl::StatusOr<Plan> plan_on(const PlanRequest& request, const Target& target, BlockRecorder& blocks) {
  const config::MemorySection& memory = request.config.memory;
  Plan plan;
  ASSIGN_OR_RETURN(
      plan.shape, run_shape(request.config, request.student, request.teachers, target, request.teacher_stream));
  plan.machine = request.machine;
  plan.automatic = std::holds_alternative<config::Automatic>(memory.activation);
  plan.automatic_state = std::holds_alternative<config::Automatic>(memory.optimizer);
  plan.budget_bytes = gib_to_bytes(memory.budget_gib);
  RETURN_IF_ERROR(
      plan.shape.cuda()
          ? config::check_float8_products(request.config, request.machine.float8_flops > 0, request.machine.name)
          : absl::OkStatus());
  device::OutsideMemory& outside = plan.shape.outside;
  outside = target.environment.outside.value_or(assumed_outside(request.machine, plan.shape.communicators()));
  const int64_t device = request.device_bytes > 0 ? request.device_bytes : gib_to_bytes(request.machine.memory_gib);
  plan.device_bytes = usable_bytes(memory, device - outside.others);
  plan.shape.allocator_limit = std::max<int64_t>(1, plan.device_bytes - outside.total());
  if (plan.automatic || plan.automatic_state) {
    choose_mix(plan, request.host_bytes, blocks);
  }
  evaluate(plan, request.host_bytes, blocks);
  if (plan.automatic_state && plan.shape.passes_through_device() && has_room(plan)) {
    add_stages(plan, request.host_bytes, blocks);
  }
  return plan;
}

// If parallel.slots is auto, takes the number with which the plan is fastest, each with the mix that is fastest then.
// Every further slot saves gathers, until all blocks stay gathered, and takes memory from activations and state. A few
// numbers are tried, then ever nearer neighbours of the best one.
absl::StatusOr<Plan> plan_with_slots(const PlanRequest& request, const Target& target, BlockRecorder& blocks) {
  constexpr int64_t kTried = 8;
  ASSIGN_OR_RETURN(Plan best, plan_on(request, target, blocks));
  const int64_t least = best.shape.config.parallel.slots, most = best.shape.gathered_blocks();
  if (request.config.parallel.slots != config::kAutomatic || best.shape.shard == 1 || !has_room(best)) {
    return best;
  }
  std::set<int64_t> tried{least};
  const auto attempt = [&](int64_t slots) -> absl::Status {
    if (slots < least || slots > most || !tried.insert(slots).second) {
      return absl::OkStatus();
    }
    PlanRequest with_slots = request;
    with_slots.config.parallel.slots = slots;
    ASSIGN_OR_RETURN(Plan plan, plan_on(with_slots, target, blocks));
    if (has_room(plan) && plan.time.total() < best.time.total()) {
      best = std::move(plan);
    }
    return absl::OkStatus();
  };
  int64_t step = std::max<int64_t>(1, (most - least + kTried - 1) / kTried);
  for (int64_t slots = least + step; slots < most + step; slots += step) {
    RETURN_IF_ERROR(attempt(std::min(slots, most)));
  }
  for (step /= 2; step > 0; step /= 2) {
    const int64_t middle = best.shape.config.parallel.slots;
    RETURN_IF_ERROR(attempt(middle - step));
    RETURN_IF_ERROR(attempt(middle + step));
  }
  return best;
}

// Tells whether a plan has reason to do without the memory that gathers by copies take.
bool lacks_memory(const Plan& plan) {
  const auto keeps = [](models::ActivationPolicy policy) { return policy == models::ActivationPolicy::kKeep; };
  return !has_room(plan) || (plan.automatic_state && plan.shape.state_on_host()) ||
      (plan.automatic && !std::all_of(plan.shape.policies.begin(), plan.shape.policies.end(), keeps));
}

// If parallel.gather is auto, takes copies, unless they do not fit or the memory that they take is worth more
// elsewhere.
absl::StatusOr<Plan> plan_alone(const PlanRequest& request, BlockRecorder& blocks) {
  ASSIGN_OR_RETURN(Plan plan, plan_with_slots(request, request.target, blocks));
  if (request.config.parallel.gather != config::Gather::kAuto || !plan.shape.copies() || !lacks_memory(plan)) {
    return plan;
  }
  Target target = request.target;
  target.peer_memory = false;
  ASSIGN_OR_RETURN(Plan other, plan_with_slots(request, target, blocks));
  const bool better = other.fits() && (!has_room(plan) || other.time.total() < plan.time.total());
  return better || (!plan.fits() && !other.fits()) ? other : plan;
}

// Sizes of tiles that memory.tile_tokens: auto tries, the largest first. Of a Llama block, a quarter of the tokens is
// enough for the MLP to need less than the backward pass of attention does; smaller tiles are for wider MLPs. Below
// 4096 tokens the sums of the weights' gradients, which each tile reads and writes, slow the products down.
std::vector<int64_t> sizes_of_tiles(int64_t tokens) {
  constexpr int64_t kLeast = 4096;
  std::vector<int64_t> sizes;
  for (const int64_t share : {4, 16}) {
    const auto size = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens / share)));
    if (size >= kLeast) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

// Whether a plan of the same run with other choices is better.
bool is_better(const Plan& other, const Plan& plan) {
  if (other.fits() && plan.fits()) {
    return has_room(other) == has_room(plan) ? other.time.total() < plan.time.total() : has_room(other);
  }
  return other.fits() || (!plan.fits() && other.memory.device_bytes() < plan.memory.device_bytes());
}

// Decides memory.tile_tokens and memory.recompute where they are auto: without tiles, and everything that is computed
// again is, unless memory is lacking and others fit or are faster.
absl::StatusOr<Plan> plan_blocks(const PlanRequest& request, BlockRecorder& blocks) {
  const config::MemorySection& asked = request.config.memory;
  const bool chooses_tiles = asked.tile_tokens == config::kAutomatic;
  const bool chooses_recompute =
      asked.recompute == config::Recompute::kAuto && std::holds_alternative<config::Automatic>(asked.activation);
  PlanRequest decided = request;
  config::MemorySection& memory = decided.config.memory;
  memory.tile_tokens = std::max<int64_t>(0, memory.tile_tokens);
  ASSIGN_OR_RETURN(Plan best, plan_alone(decided, blocks));
  const auto attempt = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(Plan other, plan_alone(decided, blocks));
    if (is_better(other, best)) {
      best = std::move(other);
    }
    return absl::OkStatus();
  };
  const bool lacks = lacks_memory(best);
  if (has_room(best)) { // gathers are chosen already
    decided.config.parallel.gather = best.shape.config.parallel.gather;
    decided.config.parallel.slots = best.shape.config.parallel.slots;
  }
  if (chooses_recompute && lacks) {
    memory.recompute = config::Recompute::kAllButAttention;
    RETURN_IF_ERROR(attempt());
    memory.recompute = best.shape.config.memory.recompute;
  }
  if (chooses_tiles && lacks) {
    for (const int64_t size : sizes_of_tiles(best.shape.tokens())) {
      memory.tile_tokens = size;
      RETURN_IF_ERROR(attempt());
    }
  }
  best.automatic_tiles = chooses_tiles;
  best.automatic_recompute = chooses_recompute;
  return best;
}

} // namespace

absl::StatusOr<Plan> make_plan(const PlanRequest& request) {
  BlockRecorder blocks;
  ASSIGN_OR_RETURN(Plan plan, plan_blocks(request, blocks));
  if (!plan.fits()) {
    plan.changes =
        cheapest_changes(request, [&blocks](const PlanRequest& changed) { return plan_blocks(changed, blocks); });
  }
  return plan;
}

} // namespace distill::plan
