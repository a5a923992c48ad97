#include "trainer/plan/capture_memory.h"

#include "data/base/status_macros.h"
#include "losses/head/capture.h"
#include "trainer/device/simulation.h"
#include "trainer/plan/simulated_run.h"
#include "trainer/sharding/simulated_mesh.h"
#include "trainer/step/loaded_models.h"
#include "trainer/teacher/capture_step.h"
#include "trainer/teacher/captured_rows.h"
#include "trainer/teacher_cache/part_thread.h"

namespace distill::plan {
namespace {

// Checks that the logits of a single token fit into the memory cap.
absl::Status check_cap(
    const config::Config& config, const models::ModelConfig& teacher, const teacher_cache::RowFormat& rows,
    const trainer::Environment& environment) {
  if (!rows.is_sparse()) {
    return absl::OkStatus();
  }
  const auto meta = at::TensorOptions().dtype(environment.teacher_dtype).device(at::kMeta);
  losses::CaptureInputs inputs;
  inputs.hidden_NG = at::empty({1, teacher.hidden_size}, meta);
  inputs.weight_VG = at::empty({teacher.vocab_size, teacher.hidden_size}, meta);
  inputs.columns = rows.column_ranges();
  inputs.meta_device = environment.device.type();
  const int64_t entries = rows.kind == losses::TeacherKind::kTopK ? rows.entries : 0;
  return losses::capture_plan(inputs, entries, config.chunks).status();
}

} // namespace

absl::StatusOr<MemoryPrediction> predict_capture(
    const config::Config& config, const trainer::TeacherSpec& teacher, const teacher_cache::RowFormat& rows,
    const Target& target, bool teacher_stream, const Machine& machine, int64_t device_bytes) {
  RunShape shape;
  shape.config = config;
  shape.teachers = teacher;
  shape.teachers.forget_sources();
  shape.configs = {config};
  shape.environment = target.environment;
  shape.teacher_stream = teacher_stream || teacher.vocabulary().aligned;
  RETURN_IF_ERROR(divide_ranks(target, shape));
  RETURN_IF_ERROR(check_cap(config, teacher.model().config, rows, target.environment));
  const DeterministicScope deterministic(config.train.deterministic);
  BlockRecorder blocks;
  MemoryPrediction prediction;
  if (shape.cuda()) { // the teacher's gathers, and sums over replicas
    const int64_t communicators = shape.ranks() == 1 ? 0 : shape.replicate > 1 ? 2 : 1;
    prediction.outside = target.environment.outside.value_or(assumed_outside(machine, communicators));
  }
  device::Simulation simulation(
      target.environment.device.type(), target.environment.allocator.kind,
      device_bytes > 0 ? std::max<int64_t>(1, device_bytes - prediction.outside.total()) : 0);
  const at::Tensor workspace = shape.cuda() ? blas_workspace() : at::Tensor(); // since the libraries were loaded
  trainer::Environment environment = target.environment;
  environment.device = at::kMeta;
  const std::unique_ptr<sharding::Mesh> mesh =
      sharding::simulated_mesh(shape.shard, shape.replicate, /*shared_memory=*/false);
  ASSIGN_OR_RETURN(
      const trainer::TeacherAlone teacher_alone,
      trainer::load_teacher_alone(config, environment, *mesh, shape.teachers.front().model()));
  prediction.static_bytes = simulation.allocated();
  const data::Batch batch = simulated_batch(shape, /*teacher=*/0);
  models::BlockFunctions functions = blocks.functions(simulation);
  functions.tile_tokens = config.memory.forward_tile_tokens();
  trainer::CaptureStep step(config, *teacher_alone.weights, rows, functions);
  for (int i = 0; i < 2; ++i) {
    step.run(batch);
  }
  prediction.use = simulation.use();
  prediction.reserved_peak = std::max(simulation.reserved_peak(), prediction.use.peak());
  // There are rows that are queued, being written, and being copied.
  prediction.host_teacher = static_cast<int64_t>(teacher_cache::PartThread::kQueued + 2) *
      trainer::places_with_rows(batch).numel() * rows.row_bytes();
  return prediction;
}

} // namespace distill::plan
