#include "trainer/step/loaded_models.h"

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/dtypes.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/metrics/task_progress.h"

namespace distill::trainer {
namespace {

absl::Status load_weights(
    sharding::ModelShards& model, const models::WeightSource& source, Role role, const LoadOptions& load) {
  metrics::TaskProgress progress(
      role == Role::kTeacher ? "reading the teacher's weights" : "reading the student's weights", model.bytes(),
      "bytes", load.progress);
  model.load(source, [&](int64_t loaded) {
    progress.add(loaded);
    if (load.unit_loaded) {
      load.unit_loaded();
    }
  });
  return source.status();
}

sharding::SlotOptions slot_options(const config::Config& config, const Environment& environment) {
  sharding::SlotOptions options;
  options.prefetch = config.parallel.prefetch;
  options.checks = config.parallel.debug_checks && !environment.device.is_meta();
  return options;
}

} // namespace

absl::StatusOr<std::unique_ptr<sharding::ModelShards>> load_model(
    const Environment& environment, const ModelSource& source, Role role, LoadOptions load) {
  sharding::ShardOptions options;
  options.device = environment.device;
  options.compute_dtype = role == Role::kTeacher ? environment.teacher_dtype : environment.student_dtype;
  options.trainable = role == Role::kStudent;
  options.rank = load.shard_rank;
  options.world_size = load.shard_size;
  options.state = std::move(load.state);
  options.gradient_dtype = load.gradient_dtype;
  options.may_leave_float8 = load.may_leave_float8;
  options.peers = load.peers;
  options.shard_axis = load.shard_axis;
  const device::LabelScope label(role == Role::kTeacher ? device::Category::kTeacher : device::Category::kStudent);
  auto model = std::make_unique<sharding::ModelShards>(source.config, options);
  if (source.weights != nullptr) {
    RETURN_IF_ERROR(load_weights(*model, *source.weights, role, load));
  }
  return model;
}

LoadOptions load_options(const config::Config& config, const sharding::Mesh& mesh, bool whole) {
  LoadOptions load;
  load.progress = mesh.is_main() ? config.run.progress : config::ProgressStyle::kNone;
  load.unit_loaded = [&mesh] { mesh.report_progress(0, "loading weights"); };
  if (!whole) {
    load.shard_rank = mesh.shard_rank;
    load.shard_size = mesh.shard_size;
    load.shard_axis = mesh.gather.get();
    load.peers = config.parallel.gather != config::Gather::kNccl ? mesh.peers.get() : nullptr;
  }
  return load;
}

absl::StatusOr<LoadedModels> load_models(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& student, const TeacherSpec& teacher, sharding::StateMemory state) {
  const config::ParallelSection& parallel = config.parallel;
  LoadOptions student_load = load_options(config, mesh, /*whole=*/false);
  student_load.state = std::move(state);
  student_load.gradient_dtype = config::scalar_type(config.optimizer.gradients);
  student_load.may_leave_float8 = config.float8.shadow_every > 0;
  // Both are read before either is judged, so that one error names the tensors of both.
  auto loaded_student = load_model(environment, student, Role::kStudent, std::move(student_load));
  std::vector<absl::StatusOr<std::unique_ptr<sharding::ModelShards>>> loaded_teacher;
  for (const ModelSource* model : teacher.loaded()) {
    loaded_teacher.push_back(
        load_model(environment, *model, Role::kTeacher, load_options(config, mesh, !parallel.shard_teacher)));
  }
  base::ProblemList problems;
  LoadedModels models;
  models.student = problems.take(std::move(loaded_student)).value_or(nullptr);
  models.teacher.spec = teacher;
  models.teacher.spec.set_weights({}); // they have been read, and the files need not stay mapped
  std::vector<sharding::ModelShards*> sharded_teacher;
  for (auto& model : loaded_teacher) {
    models.teacher.weights.push_back(problems.take(std::move(model)).value_or(nullptr));
    if (parallel.shard_teacher) {
      sharded_teacher.push_back(models.teacher.weights.back().get());
    }
  }
  // If one rank alone has read bad weights, it must not leave the others in the first collective of the slots.
  RETURN_IF_ERROR(sharding::agree(mesh, problems.status()));
  sharding::SlotOptions options = slot_options(config, environment);
  options.slots = parallel.slots;
  options.accumulation = parallel.accumulate == config::Accumulate::kKeepFull ? sharding::Accumulation::kKeepFull
                                                                              : sharding::Accumulation::kReduceEach;
  options.reduce_dtype = config::scalar_type(parallel.reduce_dtype);
  models.slots = sharding::make_slots(options, mesh, models.student.get(), sharded_teacher);
  return models;
}

absl::StatusOr<TeacherAlone> load_teacher_alone(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& teacher) {
  LoadOptions load = load_options(config, mesh, /*whole=*/!config.parallel.shard_teacher);
  load.peers = nullptr;
  auto weights = load_model(environment, teacher, Role::kTeacher, std::move(load));
  RETURN_IF_ERROR(sharding::agree(mesh, weights.status()));
  TeacherAlone loaded;
  loaded.weights = *std::move(weights);
  if (config.parallel.shard_teacher) {
    loaded.slots =
        sharding::make_slots(slot_options(config, environment), mesh, /*student=*/nullptr, {loaded.weights.get()});
  }
  return loaded;
}

} // namespace distill::trainer
