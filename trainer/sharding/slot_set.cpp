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
    const SlotOptions& options, const Mesh& mesh, ModelShards* student, const std::vector<ModelShards*>& teacher) {
  SlotSet slots;
  if (mesh.gather == nullptr) {
    return slots;
  }
  std::vector<std::pair<const char*, ModelShards*>> models; // with their roles, each of them once
  const auto add = [&models](const char* role, ModelShards* model) {
    const auto is_it = [model](const auto& other) { return other.second == model; };
    if (model != nullptr && std::find_if(models.begin(), models.end(), is_it) == models.end()) {
      models.emplace_back(role, model);
    }
  };
  const auto add_with_base = [&add](const char* role, ModelShards* model) {
    add(role, model);
    ModelShards* base = model != nullptr ? model->base().get() : nullptr;
    // A base that each rank has as a whole needs no gathers.
    add(role, base != nullptr && base->options().world_size == model->options().world_size ? base : nullptr);
  };
  add_with_base("student", student);
  for (ModelShards* model : teacher) {
    add_with_base("teacher", model);
  }
  TORCH_CHECK(!models.empty(), "make_slots: expected a student or a teacher");
  const at::Device device = models.front().second->options().device;
  SlotPlan plan;
  plan.block_slots = options.slots > 0 ? options.slots : options.prefetch + 1;
  plan.prefetch = options.prefetch;
  // The head of each of the teacher's models is held until the loss head has run, and one unit of the student's; of a
  // model with an adapter, what is trained of the unit and what is frozen.
  int64_t large = 0;
  for (const auto& [role, model] : models) {
    large += model->has(model->embedding_unit()) || model->has(model->head_unit()) ? 1 : 0;
  }
  plan.large_slots = std::max(plan.large_slots, large);
  if (options.checks) {
    slots.checks = std::make_unique<SlotChecks>(device);
  }
  for (const auto& [role, model] : models) {
    model->add_to_plan(plan);
    if (slots.checks != nullptr) {
      name_units(*slots.checks, role, *model);
    }
  }
  slots.weights = std::make_unique<WeightSlots>(device, *mesh.gather, plan, slots.checks.get());
  if (student != nullptr) {
    slots.gradients = std::make_unique<GradientSlots>(device, *mesh.reduce, mesh.replicate.get(), options.reduce_dtype);
  }
  for (const auto& [role, model] : models) {
    model->use_slots(slots.weights.get(), model == student ? slots.gradients.get() : nullptr, options.accumulation);
  }
  return slots;
}

} // namespace distill::sharding
