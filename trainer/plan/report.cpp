#include <absl/strings/strip.h>

#include <nlohmann/json.hpp>

#include "trainer/models/tiles.h"
#include "trainer/plan/attention_time.h"
#include "trainer/plan/memory_limits.h"
#include "trainer/plan/plan.h"
#include "trainer/step/loaded_models.h"

namespace distill::plan {
namespace {

using Json = nlohmann::ordered_json;

using device::bytes_text;

// Peak and speed of a change, and its speed per rank relative to the plan without it.
std::string speed_text(const Change& change, const Plan& plan) {
  const double factor = 1 / (change.seconds_per_token * plan.time.tokens_per_second);
  return absl::StrFormat(
      "peak %s, %.0f tok/s, %.0f%% of the speed of this plan", bytes_text(change.peak_bytes), change.tokens_per_second,
      100 * factor);
}

// How many tokens' MLP is computed at a time; empty: that of all.
std::string tiles_text(const Plan& plan) {
  const int64_t size = plan.shape.config.memory.tile_tokens;
  const int64_t count = models::tile_count(plan.shape.tokens(), size);
  if (count == 1) {
    return "";
  }
  return absl::StrFormat(
      "%d tiles of %d tokens, computed again in the backward pass%s", count,
      models::tiles_of(plan.shape.tokens(), size).front().tokens,
      plan.automatic_tiles ? " (auto: it does not fit without, or is slower)" : "");
}

// Where blocks run again: ", which compute all but attention again"; empty: they compute all again, or none does.
std::string recompute_text(const Plan& plan) {
  const std::vector<models::ActivationPolicy>& policies = plan.shape.policies;
  const bool any = std::any_of(policies.begin(), policies.end(), models::keeps_input_only);
  return any && !plan.shape.blocks().recomputes_attention
      ? absl::StrCat(
            ", blocks that run again save attention's output", plan.automatic_recompute ? " (auto: it is faster)" : "")
      : "";
}

// Policies of blocks, and how they were chosen.
template <typename Policy>
std::string chosen_text(const std::vector<Policy>& policies, bool automatic, int64_t mixes) {
  return absl::StrCat(
      models::policies_text(policies),
      automatic ? absl::StrFormat(" (auto: part of the fastest of %d mixes that fits)", mixes) : "");
}

void add_row(std::string& text, const std::string& name, const std::string& value) {
  absl::StrAppendFormat(&text, "  %-34s %s\n", name, value);
}

// The bytes that all ranks read in a step at most: every token has a target then.
double cached_step_bytes(const RunShape& shape) {
  return static_cast<double>(shape.ranks() * shape.micro_batches * shape.row_bytes());
}

// "134 MB a step, 512 MB/s at this speed (8 ranks)"
std::string reading_text(const Plan& plan) {
  const double bytes = cached_step_bytes(plan.shape);
  return absl::StrFormat(
      "%.4g MB a step, %.4g MB/s at this speed, on all %d rank(s) together, where every token has a target",
      1e-6 * bytes, 1e-6 * bytes / plan.time.total(), plan.shape.ranks());
}

std::string category_table(const Plan& plan) {
  const device::MemoryPhase phase = plan.memory.use.peak_phase();
  const device::PhasePeak& peak = plan.memory.use.phases[static_cast<size_t>(phase)];
  std::string text =
      absl::StrFormat("memory of one rank's device     at the peak (%s)   highest\n", device::phase_name(phase));
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    int64_t highest = 0;
    for (const device::PhasePeak& other : plan.memory.use.phases) {
      highest = std::max(highest, other.highest[i]);
    }
    if (highest > 0) {
      absl::StrAppendFormat(
          &text, "  %-34s %18s %16s\n", device::category_name(static_cast<device::Category>(i)),
          bytes_text(peak.at_peak[i]), bytes_text(highest));
    }
  }
  add_row(text, "tensors, in all", absl::StrFormat("%18s", bytes_text(plan.memory.peak())));
  add_row(
      text, "allocator slack",
      absl::StrFormat(
          "%18s%s", bytes_text(plan.memory.slack()),
          plan.shape.cuda() ? absl::StrCat("  (", device::allocator_text(plan.shape.environment.allocator.kind), ")")
                            : ""));
  if (const std::string& note = plan.shape.environment.allocator.note; plan.shape.cuda() && !note.empty()) {
    add_row(text, "", note);
  }
  const device::OutsideMemory& outside = plan.memory.outside;
  const std::string known = outside.measured ? "measured" : absl::StrCat("assumed, as on ", plan.machine.name);
  if (plan.shape.cuda()) {
    add_row(text, "communicators", absl::StrFormat("%18s  (%s)", bytes_text(outside.communicators), known));
    add_row(text, "driver and libraries", absl::StrFormat("%18s  (%s)", bytes_text(outside.context), known));
    add_row(text, "page tables of host memory", absl::StrFormat("%18s", bytes_text(plan.memory.page_tables())));
  }
  add_row(
      text, "the device, in all",
      absl::StrFormat(
          "%18s of %s%s", bytes_text(plan.memory.device_bytes()), bytes_text(plan.device_bytes),
          outside.others > 0 ? absl::StrCat(", beside ", bytes_text(outside.others), " of other processes") : ""));
  if (plan.memory.give_backs > 0) {
    add_row(
        text, "the device is full", absl::StrFormat("%18d time(s) in a step, which slows it", plan.memory.give_backs));
  }
  return text;
}

std::string teacher_name(const RunShape& shape, size_t number) {
  return shape.config.has_list() ? absl::StrCat("the teacher ", shape.config.teachers[number].name) : "the teacher";
}

// The weights that adapters belong to; empty: the student has none.
std::string base_text(const RunShape& shape) {
  if (!shape.student.adapter) {
    return "";
  }
  const std::string adapters = models::adapter_text(*shape.student.adapter);
  std::vector<std::string> sharing;
  for (size_t i = 0; i < shape.teachers.size(); ++i) {
    if (trainer::shares_base(shape.configs[i], shape.environment_of(i), shape.student, shape.teachers[i])) {
      sharing.push_back(teacher_name(shape, i));
    }
  }
  return sharing.empty()
      ? adapters
      : absl::StrCat(adapters, "; one copy of the frozen weights for the student and ", absl::StrJoin(sharing, ", "));
}

// Teachers that have one copy of their weights among themselves; empty: none has.
std::string shared_text(const RunShape& shape) {
  std::vector<std::string> groups;
  std::vector<bool> named(shape.teachers.size(), false);
  for (size_t i = 0; i < shape.teachers.size(); ++i) {
    std::vector<std::string> group = {teacher_name(shape, i)};
    for (size_t j = i + 1; j < shape.teachers.size() && !named[i]; ++j) {
      if (trainer::share_base(shape.config, shape.environment, shape.teachers, i, j)) {
        group.push_back(teacher_name(shape, j));
        named[j] = true;
      }
    }
    if (group.size() > 1) {
      groups.push_back(absl::StrJoin(group, ", "));
    }
  }
  return groups.empty() ? "" : absl::StrCat("one copy of the frozen weights for ", absl::StrJoin(groups, "; for "));
}

// "bfloat16"; of several teachers "math: bfloat16, 50% of the sequences; code: ...".
std::string teachers_text(const RunShape& shape) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < shape.teachers.size(); ++i) {
    const std::string text = shape.teachers[i].text(shape.environment_of(i).teacher_dtype);
    texts.push_back(
        shape.config.has_list()
            ? absl::StrFormat(
                  "%s: %s, %.3g%% of the sequences", shape.config.teachers[i].name, text, 100 * shape.shares[i])
            : text);
  }
  return absl::StrJoin(texts, "; ");
}

} // namespace

std::string Change::text() const {
  return absl::StrJoin(settings, " ", [](std::string* out, const auto& setting) {
    absl::StrAppend(out, setting.first, "=", setting.second);
  });
}

std::vector<std::string> Plan::warnings() const {
  std::vector<std::string> warnings;
  if (!machine.warning.empty()) {
    warnings.push_back(machine.warning);
  }
  const auto add = [&](const char* role, const models::ModelConfig& config, at::ScalarType dtype, int64_t seq_len) {
    if (!shape.cuda() || dtype == at::kFloat) { // which have no fused kernel on CUDA for any model
      return;
    }
    if (const std::string text = slow_attention_text(config, machine, seq_len); !text.empty()) {
      warnings.push_back(absl::StrCat(role, ": ", text));
    }
  };
  add("student", shape.student, shape.environment.student_dtype, shape.config.data.seq_len);
  for (size_t i = 0; i < shape.teachers.size(); ++i) {
    for (const models::ModelSource* teacher : shape.teachers[i].loaded()) {
      const std::string role = shape.config.has_list() ? teacher_name(shape, i) : "teacher";
      add(role.c_str(), teacher->config, shape.environment_of(i).teacher_dtype, shape.teacher_seq_len());
    }
  }
  return warnings;
}

std::vector<std::string> Plan::lines() const {
  std::vector<std::string> lines = memory_lines(memory, {budget_bytes, device_bytes});
  if (!shape.cuda()) {
    lines.emplace_back(
        "memory plan: these are tensors alone; the rss in a step's line is the peak of the whole process, with the "
        "program, its libraries and the pages of files that it has read");
  }
  if (const std::string base = base_text(shape); !base.empty()) {
    lines.push_back("student: " + base);
  }
  if (const std::string shared = shared_text(shape); !shared.empty()) {
    lines.push_back("teachers: " + shared);
  }
  lines.push_back(shape.head.description);
  lines.push_back(absl::StrFormat(
      "activations: %s%s; %soptimizer state: %s; predicted %.4g s a step, %.4g tok/s (%s)",
      chosen_text(shape.policies, automatic, mixes), recompute_text(*this),
      tiles_text(*this).empty() ? "" : absl::StrCat("MLP in ", tiles_text(*this), "; "),
      chosen_text(shape.places, automatic_state, mixes), time.total(), time.tokens_per_second, machine.text()));
  if (shape.row_bytes() > 0) {
    lines.push_back("teacher's rows: " + reading_text(*this));
  }
  if (engine_turn && (shape.cuda() || engine_turn->moved > 0)) {
    lines.push_back("the device while the engine writes: " + engine_turn->text());
  }
  return lines;
}

std::string Plan::text() const {
  std::string text = category_table(*this);
  text += "host memory of one rank\n";
  add_row(text, "offloaded activations", absl::StrFormat("%18s", bytes_text(memory.host_activations)));
  add_row(text, "optimizer state", absl::StrFormat("%18s", bytes_text(memory.host_optimizer)));
  if (memory.host_teacher > 0) {
    add_row(text, "teacher's rows, read ahead", absl::StrFormat("%18s", bytes_text(memory.host_teacher)));
  }
  add_row(text, "copy for checkpoints", absl::StrFormat("%18s", bytes_text(memory.host_checkpoint)));
  if (memory.host_engine > 0) {
    add_row(text, "state in the engine's turn", absl::StrFormat("%18s", bytes_text(memory.host_engine)));
  }
  if (engine_turn) {
    text += "the device while the engine writes\n";
    add_row(text, "held by the trainer", absl::StrFormat("%18s", bytes_text(engine_turn->held)));
    add_row(
        text, "moved to host memory",
        absl::StrFormat(
            "%18s%s", bytes_text(engine_turn->moved), engine_turn->automatic ? "  (onpolicy.offload: auto)" : ""));
    add_row(text, "left for the engine", absl::StrFormat("%18s", bytes_text(engine_turn->left)));
  }
  text += "run\n";
  add_row(
      text, "ranks",
      absl::StrFormat(
          "%d: sharded over %d, %d replica(s)%s", shape.ranks(), shape.shard, shape.replicate,
          shape.has_whole_teacher() ? ", the teacher whole on each" : ""));
  if (shape.shard > 1) {
    add_row(
        text, "gathers",
        absl::StrFormat(
            "%s; %d blocks held at a time, %.0f units (%s) gathered a step",
            shape.copies() ? "copies from the other ranks' memory" : "the communicator's all-gather",
            shape.config.parallel.slots, memory.gathers.units,
            bytes_text(static_cast<int64_t>(memory.gathers.total_bytes()))));
  }
  add_row(
      text, "a step on each rank",
      absl::StrFormat(
          "%d micro-batch(es) of %d x %d tokens, student %s, %s %s%s", shape.micro_batches,
          shape.config.train.micro_batch_size, shape.config.data.seq_len,
          models::precision_text(shape.student, shape.environment.student_dtype),
          shape.config.has_list() ? "teachers" : "teacher", teachers_text(shape),
          shape.teacher_stream ? absl::StrFormat(
                                     ", which reads %d x %d tokens of its own", shape.config.train.micro_batch_size,
                                     shape.teacher_seq_len())
                               : ""));
  if (const std::string base = base_text(shape); !base.empty()) {
    add_row(text, "trained", base);
  }
  if (const std::string shared = shared_text(shape); !shared.empty()) {
    add_row(text, "teachers", shared);
  }
  if (const std::string tiles = tiles_text(*this); !tiles.empty()) {
    add_row(text, "MLP of a block", tiles);
  }
  add_row(text, "activations of blocks", chosen_text(shape.policies, automatic, mixes) + recompute_text(*this));
  add_row(text, "optimizer state of blocks", chosen_text(shape.places, automatic_state, mixes));
  add_row(text, "loss head", std::string(absl::StripPrefix(shape.head.description, "loss head: ")));
  absl::StrAppendFormat(&text, "time, predicted for %s\n", machine.text());
  for (const std::string& warning : warnings()) {
    absl::StrAppend(&text, "  ", warning, "\n");
  }
  for (size_t i = 0; i < time.phases.size(); ++i) {
    add_row(text, metrics::phase_name(static_cast<metrics::Phase>(i)), absl::StrFormat("%18.4f s", time.phases[i]));
  }
  add_row(
      text, "a step",
      absl::StrFormat(
          "%18.4f s, of which %.4f lost to communication (%.4f s of communication, overlapped)", time.total(),
          time.exposed, time.communication));
  add_row(
      text, "tokens per second",
      absl::StrFormat(
          "%18.0f, %.0f for each rank", time.tokens_per_second,
          time.tokens_per_second / static_cast<double>(shape.ranks())));
  if (shape.row_bytes() > 0) {
    add_row(text, "teacher's rows", absl::StrCat("  ", reading_text(*this)));
  }
  for (const std::string& overflow : overflows) {
    absl::StrAppend(&text, "does not fit: ", overflow, "\n");
  }
  if (!fits()) {
    text += changes.empty() ? "no change of up to two keys would make it fit: use a smaller model or more ranks\n"
                            : "what would fit, the fastest first\n";
  }
  for (const Change& change : changes) {
    absl::StrAppend(&text, "  ", change.text(), "  (", speed_text(change, *this), ")\n");
  }
  return text;
}

std::string Plan::json() const {
  Json json;
  json["fits"] = fits();
  json["ranks"] = shape.ranks();
  json["shard"] = shape.shard;
  json["replicate"] = shape.replicate;
  json["shard_teacher"] = shape.config.parallel.shard_teacher;
  bool one_base = false;
  for (size_t i = 0; i < shape.teachers.size(); ++i) {
    one_base =
        one_base || trainer::shares_base(shape.configs[i], shape.environment_of(i), shape.student, shape.teachers[i]);
  }
  json["one_base"] = one_base;
  json["teachers"] = shape.config.teacher_names();
  json["gather"] = base::enum_name(shape.config.parallel.gather);
  json["slots"] = shape.config.parallel.slots;
  json["gathers"] = memory.gathers.units;
  json["gathered_bytes"] = memory.gathers.total_bytes();
  json["micro_batches"] = shape.micro_batches;
  json["tokens_per_micro_batch"] = shape.tokens();
  json["cached_bytes_per_token"] = shape.teachers.row_bytes();
  json["cached_bytes_per_step"] = cached_step_bytes(shape);
  json["cached_bytes_per_second"] = cached_step_bytes(shape) / time.total();
  json["teacher_tokens_per_micro_batch"] = shape.teachers.exist() ? shape.teacher_tokens() : 0;
  Json policies = Json::array();
  for (const models::ActivationPolicy policy : shape.policies) {
    policies.push_back(base::enum_name(policy));
  }
  json["activation"] = models::policies_text(shape.policies);
  json["policies"] = policies;
  json["tile_tokens"] = shape.config.memory.tile_tokens;
  json["recompute"] = base::enum_name(shape.config.memory.recompute);
  json["optimizer"] = models::policies_text(shape.places);
  json["state_stages"] = shape.state_on_host() ? shape.state_stages : 0;
  json["mixes_considered"] = mixes;
  const std::vector<int64_t>& chunks = shape.head.logits_rows; // the first one is the largest
  json["head"] = {
      {"chunk_size", chunks.empty() ? 0 : chunks.front()},
      {"chunks", chunks},
      {"gradient_rows", shape.head.gradient_rows},
      {"bytes", shape.head.bytes}};
  Json& bytes = json["bytes"];
  bytes["peak"] = memory.peak();
  bytes["static"] = memory.static_bytes;
  bytes["allocator_slack"] = memory.slack();
  bytes["communicators"] = memory.outside.communicators;
  bytes["context"] = memory.outside.context;
  bytes["page_tables"] = memory.page_tables();
  bytes["other_processes"] = memory.outside.others;
  bytes["device"] = memory.device_bytes();
  bytes["device_available"] = device_bytes;
  bytes["budget"] = budget_bytes;
  bytes["host_activations"] = memory.host_activations;
  bytes["host_optimizer"] = memory.host_optimizer;
  bytes["host_checkpoint"] = memory.host_checkpoint;
  bytes["host_teacher"] = memory.host_teacher;
  bytes["host_engine"] = memory.host_engine;
  if (engine_turn) {
    json["engine_turn"] = {{"held", engine_turn->held}, {"moved", engine_turn->moved}, {"left", engine_turn->left}};
  }
  for (size_t p = 0; p < device::kNumMemoryPhases; ++p) {
    const device::PhasePeak& peak = memory.use.phases[p];
    Json& phase = json["phases"][device::phase_name(static_cast<device::MemoryPhase>(p))];
    phase["peak"] = peak.bytes;
    for (size_t i = 0; i < device::kNumCategories; ++i) {
      const char* name = device::category_name(static_cast<device::Category>(i));
      phase["at_peak"][name] = peak.at_peak[i];
      phase["highest"][name] = peak.highest[i];
    }
  }
  json["peak_phase"] = device::phase_name(memory.use.peak_phase());
  for (size_t i = 0; i < time.phases.size(); ++i) {
    json["seconds"][metrics::phase_name(static_cast<metrics::Phase>(i))] = time.phases[i];
  }
  json["seconds"]["step"] = time.total();
  json["seconds"]["communication_overlapped"] = time.communication;
  json["seconds"]["copies"] = time.copies;
  json["tokens_per_second"] = time.tokens_per_second;
  json["outside_measured"] = memory.outside.measured;
  json["allocator"] = base::enum_name(shape.environment.allocator.kind);
  json["give_backs"] = memory.give_backs;
  json["machine"] = machine.name;
  json["machine_source"] = machine.source;
  json["machine_choice"] = machine.choice;
  json["overflows"] = overflows;
  json["changes"] = Json::array();
  for (const Change& change : changes) {
    Json settings;
    for (const auto& [key, value] : change.settings) {
      settings[key] = value;
    }
    json["changes"].push_back(
        {{"settings", settings},
         {"peak_bytes", change.peak_bytes},
         {"tokens_per_second", change.tokens_per_second},
         {"speed", 1 / (change.seconds_per_token * time.tokens_per_second)}});
  }
  return json.dump(1);
}

} // namespace distill::plan
