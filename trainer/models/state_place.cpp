#include "trainer/models/state_place.h"

namespace distill::models {

std::vector<StatePlace> places_of_units(const std::vector<StatePlace>& blocks, bool tied_embeddings) {
  if (blocks.empty()) {
    return {};
  }
  std::vector<StatePlace> units{blocks.front()};
  units.insert(units.end(), blocks.begin(), blocks.end());
  if (!tied_embeddings) {
    units.push_back(blocks.back());
  }
  return units;
}

} // namespace distill::models
