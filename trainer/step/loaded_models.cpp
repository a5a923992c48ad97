#include "trainer/step/loaded_models.h"

#include "trainer/config/dtypes.h"
#include "trainer/device/memory_tracker.h"

namespace distill::trainer {

std::unique_ptr<sharding::ModelShards> load_model(
    const Environment& environment, const ModelSource& source, Role role, int64_t shard_rank, int64_t shard_size,
    std::shared_ptr<device::HostSlab> host_state) {
  sharding::ShardOptions options;
  options.device = environment.device;
  options.compute_dtype = role == Role::kTeacher ? environment.teacher_dtype : environment.student_dtype;
  options.trainable = role == Role::kStudent;
  options.rank = shard_rank;
  options.world_size = shard_size;
  options.host_state = std::move(host_state);
  const device::LabelScope label(role == Role::kTeacher ? device::Category::kTeacher : device::Category::kStudent);
  auto model = std::make_unique<sharding::ModelShards>(source.config, options);
  if (source.weights != nullptr) {
    model->load(*source.weights);
  }
  return model;
}

LoadedModels load_models(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& student, const ModelSource* teacher, std::shared_ptr<device::HostSlab> host_state) {
  const config::ParallelSection& parallel = config.parallel;
  LoadedModels models;
  models.student =
      load_model(environment, student, Role::kStudent, mesh.shard_rank, mesh.shard_size, std::move(host_state));
  if (teacher != nullptr) {
    const bool shards = parallel.shard_teacher;
    models.teacher =
        load_model(environment, *teacher, Role::kTeacher, shards ? mesh.shard_rank : 0, shards ? mesh.shard_size : 1);
  }
  sharding::SlotOptions options;
  options.prefetch = parallel.prefetch;
  options.accumulation = parallel.accumulate == config::Accumulate::kKeepFull ? sharding::Accumulation::kKeepFull
                                                                              : sharding::Accumulation::kReduceEach;
  options.reduce_dtype = config::scalar_type(parallel.reduce_dtype);
  options.checks = parallel.debug_checks && !environment.device.is_meta();
  models.slots =
      sharding::make_slots(options, mesh, *models.student, parallel.shard_teacher ? models.teacher.get() : nullptr);
  return models;
}

} // namespace distill::trainer
