#include "trainer/plan/engine_turn.h"

#include <absl/strings/str_cat.h>

namespace distill::plan {
namespace {

constexpr double kGiB = 1 << 30;

using device::bytes_text;

// The categories of which a trainer moves all that its device's allocator has handed out.
constexpr device::Category kMoved[] = {
    device::Category::kStudent, device::Category::kMaster, device::Category::kMoments, device::Category::kTeacher,
    device::Category::kSlots};

int64_t movable_bytes(const MemoryPrediction& memory) {
  int64_t bytes = -memory.peer_bytes; // which other ranks have mapped
  for (const device::Category category : kMoved) {
    bytes += memory.static_use[static_cast<size_t>(category)];
  }
  return std::max<int64_t>(0, bytes);
}

} // namespace

std::string EngineTurn::text() const {
  return absl::StrCat(
      bytes_text(held), " held by the trainer, ", left > 0 ? bytes_text(left) + " left for the engine" : "",
      left > 0 ? "; " : "", moved > 0 ? bytes_text(moved) + " of the state in host memory" : "no state is moved",
      automatic ? " (auto)" : "");
}

std::optional<EngineTurn> plan_engine_turn(
    const RunShape& shape, int64_t device_bytes, MemoryPrediction& memory, std::vector<std::string>& overflows) {
  const config::OnPolicySection& own = shape.config.onpolicy;
  if (!own.enabled() || own.staleness > 0) {
    return std::nullopt;
  }
  const auto needed = static_cast<int64_t>(own.engine_gib * kGiB);
  EngineTurn turn;
  turn.held = memory.static_bytes + memory.outside.total() + memory.page_tables();
  const auto left = [&] { return device_bytes - turn.held; };
  turn.automatic = own.offload == config::EngineOffload::kAuto;
  const bool moves = own.offload == config::EngineOffload::kAll ||
      (turn.automatic && needed > 0 && device_bytes > 0 && left() < needed);
  if (moves) {
    const int64_t pages = memory.page_tables();
    turn.moved = movable_bytes(memory);
    memory.host_engine = turn.moved;
    turn.held += memory.page_tables() - pages - turn.moved;
  }
  turn.left = device_bytes > 0 ? std::max<int64_t>(0, left()) : 0;
  if (device_bytes > 0 && needed > left()) {
    overflows.push_back(
        absl::StrCat("the engine's turn: ", bytes_text(needed), " are asked for (onpolicy.engine_gib), ", turn.text()));
  }
  return turn;
}

} // namespace distill::plan
