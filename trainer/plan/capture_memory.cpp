#include "trainer/plan/capture_memory.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "data/base/status_macros.h"
#include "losses/head/capture.h"
#include "trainer/device/simulation.h"
#include "trainer/plan/block_recorder.h"
#include "trainer/plan/simulated_run.h"
#include "trainer/sharding/simulated_mesh.h"
#include "trainer/sharding/slot_set.h"
#include "trainer/step/loaded_models.h"
#include "trainer/teacher/capture_step.h"
#include "trainer/teacher_cache/part_thread.h"

namespace distill::plan {
namespace {

using device::bytes_text;

constexpr double kGiB = 1 << 30;

// The parts of a run's shape that a capture has.
absl::StatusOr<RunShape> capture_shape(
    const config::Config& config, const models::ModelConfig& teacher, const Target& target, bool teacher_stream) {
  RunShape shape;
  shape.config = config;
  shape.teacher = trainer::TeacherSpec::running({teacher, nullptr});
  shape.environment = target.environment;
  shape.teacher_stream = teacher_stream;
  shape.replicate = config.parallel.replicate;
  shape.shard = config.parallel.shard > 0 ? config.parallel.shard : target.world_size / shape.replicate;
  if (shape.ranks() != target.world_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.shard %d x parallel.replicate %d is %d ranks, but there are %d", shape.shard, shape.replicate,
        shape.ranks(), target.world_size));
  }
  return shape;
}

// The memory cap against a single token's logits.
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
  inputs.vocab_size = rows.columns;
  inputs.meta_device = environment.device.type();
  const int64_t entries = rows.kind == losses::TeacherKind::kTopK ? rows.entries : 0;
  return losses::capture_plan(inputs, entries, config.chunks).status();
}

} // namespace

absl::StatusOr<CaptureMemory> predict_capture(
    const config::Config& config, const models::ModelConfig& teacher, const teacher_cache::RowFormat& rows,
    const Target& target, bool teacher_stream, int64_t device_bytes) {
  ASSIGN_OR_RETURN(const RunShape shape, capture_shape(config, teacher, target, teacher_stream));
  RETURN_IF_ERROR(check_cap(config, teacher, rows, target.environment));
  const DeterministicScope deterministic(config.train.deterministic);
  BlockRecorder blocks;
  device::Simulation simulation(target.environment.device.type());
  trainer::Environment environment = target.environment;
  environment.device = at::kMeta;
  const std::unique_ptr<sharding::Mesh> mesh =
      sharding::simulated_mesh(shape.shard, shape.replicate, /*shared_memory=*/false);
  const bool sharded = config.parallel.shard_teacher;
  trainer::LoadOptions load;
  load.shard_size = sharded ? shape.shard : 1;
  CaptureMemory memory;
  ASSIGN_OR_RETURN(
      const auto model,
      trainer::load_model(environment, trainer::ModelSource{teacher, nullptr}, trainer::Role::kTeacher, load));
  memory.static_bytes = simulation.allocated();
  sharding::SlotSet slots;
  if (sharded) {
    sharding::SlotOptions options;
    options.prefetch = config.parallel.prefetch;
    slots = sharding::make_frozen_slots(options, *mesh, *model, "teacher");
  }
  at::Tensor workspace;
  if (shape.cuda()) {
    workspace = blas_workspace();
    memory.context = kContext;
    memory.communicators = shape.ranks() == 1 ? 0 : kCommunicator * (shape.replicate > 1 ? 2 : 1);
  }
  const data::Batch batch = simulated_batch(shape);
  trainer::CaptureStep step(config, *model, rows, blocks.functions(simulation));
  for (int i = 0; i < 2; ++i) {
    step.run(batch);
  }
  memory.use = simulation.use();
  memory.slack = std::max<int64_t>(0, simulation.reserved_peak() - memory.use.peak());
  // Queued, being written, and being copied.
  memory.host_rows =
      static_cast<int64_t>(teacher_cache::PartThread::kQueued + 2) * batch.valid_tokens * rows.row_bytes();
  const auto limit = static_cast<int64_t>(config.memory.limit_gib * kGiB);
  memory.available_bytes = limit > 0 && (device_bytes == 0 || limit < device_bytes) ? limit : device_bytes;
  return memory;
}

std::vector<std::string> CaptureMemory::lines() const {
  std::vector<std::string> parts;
  const device::PhasePeak& peak = use.phases[static_cast<size_t>(use.peak_phase())];
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    if (peak.at_peak[i] > 0) {
      parts.push_back(
          absl::StrCat(device::category_name(static_cast<device::Category>(i)), " ", bytes_text(peak.at_peak[i])));
    }
  }
  return {
      absl::StrFormat(
          "memory plan: %s of tensors at the peak, %s of %s of device memory; %s of rows on the host",
          bytes_text(this->peak()), bytes_text(device_bytes()), bytes_text(available_bytes), bytes_text(host_rows)),
      "memory plan: " + absl::StrJoin(parts, ", ")};
}

absl::Status check_fits(const CaptureMemory& memory) {
  if (memory.available_bytes == 0 || memory.device_bytes() <= memory.available_bytes) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrFormat(
      "the memory plan does not fit: expected at most %s on the device, found %s (%s of tensors at the peak); smaller: "
      "train.micro_batch_size, loss.memory_cap_mb for the kinds topk and sampled, teacher.dtype: float8, or more ranks "
      "with parallel.shard_teacher; memory.on_overflow=warn tries anyway",
      bytes_text(memory.available_bytes), bytes_text(memory.device_bytes()), bytes_text(memory.peak())));
}

} // namespace distill::plan
