#pragma once

#include "trainer/models/policies_text.h"

namespace distill::models {

// Where the optimizer's state of a unit is stored, its fp32 master weights and moments, and what updates it there.
enum class StatePlace {
  kDevice,
  kHost, // in pinned memory, from which it passes through the device for each update
  kCpu, // in pinned memory, where the host's cores update it
};
constexpr auto enum_names(StatePlace) {
  return base::names_of<StatePlace>("device", "host", "cpu");
}

constexpr bool is_on_host(StatePlace place) {
  return place != StatePlace::kDevice;
}

// The place of each unit's state, given those of the decoder blocks; empty for none. The embedding's is
// that of the first block, and that of the final norm and lm_head is that of the last block. With tied embeddings these
// are one unit, whose place is that of the first block.
std::vector<StatePlace> places_of_units(const std::vector<StatePlace>& blocks, bool tied_embeddings);

} // namespace distill::models
