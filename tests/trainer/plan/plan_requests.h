#pragma once

#include "tests/trainer/models/llama_like.h"
#include "trainer/plan/machine_table.h"
#include "trainer/plan/plan.h"

// Plans of Llama's shapes on H200, for tests.
namespace distill::plan {

inline constexpr double kGiB = 1 << 30;

inline models::ModelConfig llama(
    int64_t hidden, int64_t ffn, int64_t layers, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return models::llama_like(
      {.vocab = 128256,
       .hidden = hidden,
       .ffn = ffn,
       .layers = layers,
       .heads = heads,
       .kv_heads = kv_heads,
       .head_dim = head_dim,
       .max_positions = 131072});
}
inline models::ModelConfig llama_1b() {
  return llama(2048, 8192, 16, 32, 8, 64);
}
inline models::ModelConfig llama_8b() {
  return llama(4096, 14336, 32, 32, 8, 128);
}

inline config::Config settings(int64_t ranks, const std::string& activation = "keep") {
  config::Config config;
  config.data.seq_len = 4096;
  config.data.packing = data::PackingMode::kConcat;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 2 * ranks;
  config.memory.activation = *config::parse_by_block<models::ActivationPolicy>(activation);
  return config;
}

inline Plan plan_of(
    const config::Config& config, int64_t ranks, const models::ModelConfig& student, const models::ModelConfig& teacher,
    const Machine& machine = h200()) {
  Target target;
  target.world_size = ranks;
  const auto plan = make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, machine});
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  return *plan;
}

inline int64_t highest(const Plan& plan, device::Category category) {
  int64_t bytes = 0;
  for (const device::PhasePeak& phase : plan.memory.use.phases) {
    bytes = std::max(bytes, phase.highest[static_cast<size_t>(category)]);
  }
  return bytes;
}

} // namespace distill::plan
