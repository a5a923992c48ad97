#include "trainer/sharding/slot_set.h"

namespace distill::sharding {
namespace {

void name_units(SlotChecks& checks, const std::string& role, const ModelShards& model) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < model.num_units(); ++i) {
    names.push_back(model.unit(i).layout.name);
  }
  checks.name_units(&model, role, names);
}

} // namespace

SlotSet make_slots(
    const SlotOptions& options, const Mesh& mesh, ModelShards& student, const std::vector<ModelShards*>& teacher) {
  SlotSet slots;
  if (mesh.gather == nullptr) {
    return slots;
  }
  const at::Device device = student.options().device;
  SlotPlan plan;
  plan.block_slots = options.slots > 0 ? options.slots : options.prefetch + 1;
  plan.prefetch = options.prefetch;
  // The head of each of the teacher's models is held until the loss head has run, and one unit of the student's.
  plan.large_slots = std::max<int64_t>(plan.large_slots, 1 + std::ssize(teacher));
  student.add_to_plan(plan);
  for (const ModelShards* model : teacher) {
    model->add_to_plan(plan);
  }
  if (options.checks) {
    slots.checks = std::make_unique<SlotChecks>(device);
    name_units(*slots.checks, "student", student);
    for (const ModelShards* model : teacher) {
      name_units(*slots.checks, "teacher", *model);
    }
  }
  slots.weights = std::make_unique<WeightSlots>(device, *mesh.gather, plan, slots.checks.get());
  slots.gradients = std::make_unique<GradientSlots>(device, *mesh.reduce, mesh.replicate.get(), options.reduce_dtype);
  student.use_slots(slots.weights.get(), slots.gradients.get(), options.accumulation);
  for (ModelShards* model : teacher) {
    model->use_slots(slots.weights.get(), nullptr, options.accumulation);
  }
  return slots;
}

SlotSet make_frozen_slots(const SlotOptions& options, const Mesh& mesh, ModelShards& model, const std::string& role) {
  SlotSet slots;
  if (mesh.gather == nullptr) {
    return slots;
  }
  const at::Device device = model.options().device;
  SlotPlan plan;
  plan.block_slots = options.slots > 0 ? options.slots : options.prefetch + 1;
  plan.prefetch = options.prefetch;
  model.add_to_plan(plan);
  if (options.checks) {
    slots.checks = std::make_unique<SlotChecks>(device);
    name_units(*slots.checks, role, model);
  }
  slots.weights = std::make_unique<WeightSlots>(device, *mesh.gather, plan, slots.checks.get());
  model.use_slots(slots.weights.get(), nullptr, options.accumulation);
  return slots;
}

} // namespace distill::sharding
