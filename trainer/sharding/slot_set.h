#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/sharding/gradient_slots.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"
#include "trainer/sharding/slot_checks.h"
#include "trainer/sharding/weight_slots.h"

namespace distill::sharding {

// The buffers that gathered weights and whole gradients pass through. Empty on one process.
struct SlotSet {
  std::unique_ptr<SlotChecks> checks; // null: no checksums
  std::unique_ptr<WeightSlots> weights;
  std::unique_ptr<GradientSlots> gradients;
};

struct SlotOptions {
  int64_t prefetch = 1; // blocks whose weights are prefetched
  int64_t slots = 0; // gathered blocks that are held at a time; 0: prefetch + 1
  Accumulation accumulation = Accumulation::kReduceEach;
  at::ScalarType reduce_dtype = at::kFloat; // dtype in which gradients are reduced
  bool checks = false; // checksums of every gathered unit between its uses
};

// Makes the slots for all models and has the models use them. `student`: null where a teacher runs alone; `teacher`:
// the models of it that are sharded. At least one model is given.
SlotSet make_slots(
    const SlotOptions& options, const Mesh& mesh, ModelShards* student, const std::vector<ModelShards*>& teacher);

} // namespace distill::sharding
