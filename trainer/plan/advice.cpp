#include "trainer/plan/advice.h"

namespace distill::plan {
namespace {

constexpr size_t kMaxChanges = 3;
constexpr char kActivation[] = "memory.activation";
constexpr char kOptimizer[] = "memory.optimizer";
constexpr char kTiles[] = "memory.tile_tokens";
constexpr int64_t kGpusOfANode = 8;

// A key and a value with which the run may fit.
struct Candidate {
  std::string key;
  std::string value;
  std::function<void(config::Config&)> apply;
  std::function<void(Target&)> apply_target = nullptr;
};

std::vector<Candidate> candidates_of(const PlanRequest& request) {
  const config::Config& config = request.config;
  std::vector<Candidate> candidates;
  const auto add = [&](std::string key, std::string value, std::function<void(config::Config&)> apply) {
    candidates.push_back({std::move(key), std::move(value), std::move(apply)});
  };
  const auto add_number = [&](std::string key, int64_t value, std::function<void(config::Config&)> apply) {
    add(std::move(key), absl::StrCat(value), std::move(apply));
  };
  if (!std::holds_alternative<config::Automatic>(config.memory.activation)) {
    add(kActivation, "auto", [](config::Config& c) { c.memory.activation = config::Automatic{}; });
  }
  if (!std::holds_alternative<config::Automatic>(config.memory.optimizer) &&
      config.student.dtype != config::ComputeDtype::kFloat8) {
    add(kOptimizer, "auto", [](config::Config& c) { c.memory.optimizer = config::Automatic{}; });
  }
  if (config.memory.recompute == config::Recompute::kAllButAttention) {
    add("memory.recompute", "all", [](config::Config& c) { c.memory.recompute = config::Recompute::kAll; });
  }
  if (config.memory.tile_tokens != config::kAutomatic) {
    add(kTiles, "auto", [](config::Config& c) { c.memory.tile_tokens = config::kAutomatic; });
  }
  const device::AllocatorSettings& allocator = request.target.environment.allocator;
  if (config.memory.allocator == device::AllocatorKind::kSegments && !allocator.by_user &&
      request.target.environment.device.is_cuda()) {
    Candidate pages{"memory.allocator", base::enum_name(device::AllocatorKind::kExpandable), [](config::Config& c) {
                      c.memory.allocator = device::AllocatorKind::kExpandable;
                    }};
    pages.apply_target = [](Target& target) { target.environment.allocator.kind = device::AllocatorKind::kExpandable; };
    candidates.push_back(std::move(pages));
  }
  for (int64_t cap = config.chunks.memory_cap_mb / 2; cap >= 64; cap /= 2) {
    add_number("loss.memory_cap_mb", cap, [cap](config::Config& c) { c.chunks.memory_cap_mb = cap; });
  }
  for (int64_t batch = config.train.micro_batch_size / 2; batch >= 1; batch /= 2) {
    if (config.train.global_batch_size % (batch * request.target.world_size) == 0) {
      add_number("train.micro_batch_size", batch, [batch](config::Config& c) { c.train.micro_batch_size = batch; });
    }
  }
  for (int64_t length = config.data.seq_len / 2; length >= 256; length /= 2) {
    add_number("data.seq_len", length, [length](config::Config& c) { c.data.seq_len = length; });
  }
  for (int64_t length = request.teacher_stream ? config.data.teacher_seq_len / 2 : 0; length >= 256; length /= 2) {
    add_number("data.teacher_seq_len", length, [length](config::Config& c) { c.data.teacher_seq_len = length; });
  }
  if (config.parallel.gather == config::Gather::kCopy) {
    add("parallel.gather", "nccl", [](config::Config& c) { c.parallel.gather = config::Gather::kNccl; });
  }
  if (config.parallel.slots > config.parallel.prefetch + 1) {
    add_number("parallel.slots", 0, [](config::Config& c) { c.parallel.slots = 0; });
  }
  if (!config.parallel.shard_teacher) {
    add("parallel.shard_teacher", "true", [](config::Config& c) { c.parallel.shard_teacher = true; });
  }
  for (int64_t copies = config.parallel.replicate - 1; copies >= 1; --copies) {
    if (config.parallel.shard == 0 && request.target.world_size % copies == 0) {
      add_number("parallel.replicate", copies, [copies](config::Config& c) { c.parallel.replicate = copies; });
    }
  }
  if (config.parallel.replicate == 1 && config.parallel.shard == 0) {
    for (int64_t ranks = request.target.world_size * 2; ranks <= request.target.world_size * 8; ranks *= 2) {
      // This candidate is the same micro-batch on more ranks; the global batch is rounded up to a multiple of theirs.
      Candidate more{
          ranks <= kGpusOfANode ? "parallel.processes" : "ranks", absl::StrCat(ranks), [ranks](config::Config& c) {
            const int64_t samples = ranks * c.train.micro_batch_size;
            c.train.global_batch_size = (c.train.global_batch_size + samples - 1) / samples * samples;
          }};
      more.apply_target = [ranks](Target& target) { target.world_size = ranks; };
      candidates.push_back(std::move(more));
    }
  }
  return candidates;
}

// Dtypes with which the run may fit, and trains a little differently.
std::vector<Candidate> rounding_candidates(const config::Config& config) {
  std::vector<Candidate> candidates;
  const auto add = [&](const char* key, config::RoundedDtype config::OptimizerSection::*dtype) {
    constexpr auto kRounded = config::RoundedDtype::kBFloat16;
    if (config.optimizer.*dtype != kRounded) {
      candidates.push_back(
          {key, base::enum_name(kRounded), [dtype](config::Config& c) { c.optimizer.*dtype = kRounded; }});
    }
  };
  add("optimizer.gradients", &config::OptimizerSection::gradients);
  add("optimizer.moments", &config::OptimizerSection::moments);
  return candidates;
}

std::optional<Change> attempt(
    const PlanRequest& request, const std::vector<const Candidate*>& together, const Planner& planner) {
  PlanRequest changed = request;
  Change change;
  for (const Candidate* candidate : together) {
    candidate->apply(changed.config);
    if (candidate->apply_target) {
      candidate->apply_target(changed.target);
    }
    change.settings.emplace_back(candidate->key, candidate->value);
  }
  const auto plan = planner(changed);
  if (!plan.ok() || !plan->fits()) {
    return std::nullopt;
  }
  change.peak_bytes = plan->memory.peak();
  change.tokens_per_second = plan->time.tokens_per_second;
  change.seconds_per_token = 1 / plan->time.tokens_per_second * static_cast<double>(plan->shape.ranks()) /
      static_cast<double>(request.target.world_size);
  return change;
}

// Whether a change of one of the two keys of a pair is as fast as the pair, but for rounding.
bool one_is_as_fast(const std::vector<Change>& changes, const Change& pair) {
  return std::any_of(changes.begin(), changes.end(), [&](const Change& other) {
    return other.settings.size() == 1 &&
        std::find(pair.settings.begin(), pair.settings.end(), other.settings.front()) != pair.settings.end() &&
        other.seconds_per_token <= 1.0001 * pair.seconds_per_token;
  });
}

} // namespace

std::vector<Change> cheapest_changes(const PlanRequest& request, const Planner& planner) {
  const std::vector<Candidate> candidates = candidates_of(request);
  std::vector<Change> changes;
  std::vector<std::string> solved; // keys for which a value that fits was found; the mildest is tried first
  for (const Candidate& candidate : candidates) {
    if (std::find(solved.begin(), solved.end(), candidate.key) == solved.end()) {
      if (auto change = attempt(request, {&candidate}, planner)) {
        changes.push_back(*std::move(change));
        solved.push_back(candidate.key);
      }
    }
  }
  const bool alone_is_enough = !changes.empty();
  std::vector<std::pair<std::string, std::string>> solved_pairs;
  for (size_t i = 0; i < candidates.size(); ++i) {
    for (size_t k = i + 1; k < candidates.size(); ++k) {
      const std::pair keys(candidates[i].key, candidates[k].key);
      const bool changes_memory_alone = keys == std::pair<std::string, std::string>(kActivation, kOptimizer);
      if (keys.first == keys.second || (alone_is_enough && !changes_memory_alone) ||
          std::find(solved_pairs.begin(), solved_pairs.end(), keys) != solved_pairs.end()) {
        continue;
      }
      auto change = attempt(request, {&candidates[i], &candidates[k]}, planner);
      if (change && !one_is_as_fast(changes, *change)) {
        changes.push_back(*std::move(change));
        solved_pairs.push_back(keys);
      }
    }
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.seconds_per_token < b.seconds_per_token;
  });
  changes.resize(std::min(changes.size(), kMaxChanges));
  std::optional<Change> rounding;
  for (const Candidate& candidate : rounding_candidates(request.config)) {
    auto change = attempt(request, {&candidate}, planner);
    if (change && (!rounding || change->seconds_per_token < rounding->seconds_per_token)) {
      rounding = std::move(change);
    }
  }
  if (rounding) {
    changes.push_back(*std::move(rounding));
  }
  return changes;
}

} // namespace distill::plan
