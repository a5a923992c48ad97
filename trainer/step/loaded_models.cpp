#include "trainer/step/loaded_models.h"

#include <algorithm>
#include <filesystem>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/teachers.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/step/head_plan.h"

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
    const Environment& environment, const ModelSource& source, Role role, LoadOptions load,
    std::shared_ptr<sharding::ModelShards> base) {
  const bool has_adapter = source.config.adapter.has_value();
  if (has_adapter && base == nullptr) {
    ModelSource frozen{source.config, source.weights, nullptr};
    frozen.config.adapter.reset();
    LoadOptions load_base = load;
    load_base.state = {};
    const Role frozen_role = role == Role::kStudent ? Role::kFrozenStudent : role;
    ASSIGN_OR_RETURN(base, load_model(environment, frozen, frozen_role, std::move(load_base)));
  }
  sharding::ShardOptions options;
  options.device = environment.device;
  options.compute_dtype = role == Role::kTeacher ? environment.teacher_dtype : environment.student_dtype;
  options.trainable = role == Role::kStudent;
  options.rank = load.shard_rank;
  options.world_size = load.shard_size;
  options.state = std::move(load.state);
  options.gradient_dtype = load.gradient_dtype;
  options.may_leave_float8 = load.may_leave_float8 && !has_adapter;
  options.peers = load.peers;
  options.shard_axis = load.shard_axis;
  const device::LabelScope label(role == Role::kTeacher ? device::Category::kTeacher : device::Category::kStudent);
  auto model = std::make_unique<sharding::ModelShards>(source.config, options, std::move(base));
  const std::shared_ptr<const models::WeightSource>& weights = has_adapter ? source.adapter : source.weights;
  if (weights != nullptr) {
    RETURN_IF_ERROR(load_weights(*model, *weights, role, load));
  }
  return model;
}

bool shares_base(
    const config::Config& config, const Environment& environment, const models::ModelConfig& student,
    const TeacherSpec& teacher) {
  // The folder describes everything of the weights but their precision.
  return student.adapter && teacher.exists() && !teacher.rows() && config.same_folder() &&
      !teacher.vocabulary().renumbered() && environment.student_dtype == environment.teacher_dtype &&
      student.float8 == teacher.model().config.float8;
}

bool share_base(
    const config::Config& config, const Environment& environment, const Teachers& teachers, size_t a, size_t b) {
  const config::Config own = config::config_of_teacher(config, a), other = config::config_of_teacher(config, b);
  std::error_code error;
  const auto folder = [&error](const std::string& path) { return std::filesystem::weakly_canonical(path, error); };
  const bool run = teachers[a].exists() && teachers[b].exists() && !teachers[a].rows() && !teachers[b].rows();
  return run && own.teacher.init == other.teacher.init && folder(own.teacher.path) == folder(other.teacher.path) &&
      environment_of_teacher(own, environment).teacher_dtype ==
      environment_of_teacher(other, environment).teacher_dtype &&
      teachers[a].model().config.float8 == teachers[b].model().config.float8 &&
      teachers[a].vocabulary().rows == teachers[b].vocabulary().rows &&
      own.parallel.shard_teacher == other.parallel.shard_teacher;
}

FrozenModels::FrozenModels(
    const config::Config& config, const Environment& environment, const Teachers& teachers,
    std::function<LoadOptions(bool whole)> load)
    : environment_(environment),
      teachers_(teachers),
      config_(config),
      configs_(config::configs_of_teachers(config)),
      load_(std::move(load)),
      bases_(teachers.size()) {}

absl::StatusOr<std::shared_ptr<sharding::ModelShards>> FrozenModels::base_of_student(const ModelSource& student) {
  for (size_t i = 0; i < teachers_.size(); ++i) {
    const Environment environment = environment_of_teacher(configs_[i], environment_);
    if (shares_base(configs_[i], environment, student.config, teachers_[i])) {
      ModelSource frozen{student.config, student.weights, nullptr};
      frozen.config.adapter.reset();
      ASSIGN_OR_RETURN(
          bases_[i], load_model(environment, frozen, Role::kTeacher, load_(!configs_[i].parallel.shard_teacher)));
      return bases_[i];
    }
  }
  return nullptr;
}

std::vector<absl::StatusOr<std::shared_ptr<sharding::ModelShards>>> FrozenModels::load_teacher(size_t number) {
  std::shared_ptr<sharding::ModelShards>& base = bases_[number];
  for (size_t other = 0; base == nullptr && other < bases_.size(); ++other) {
    if (bases_[other] != nullptr && share_base(config_, environment_, teachers_, number, other)) {
      base = bases_[other];
    }
  }
  const Environment environment = environment_of_teacher(configs_[number], environment_);
  std::vector<absl::StatusOr<std::shared_ptr<sharding::ModelShards>>> models;
  for (const ModelSource* model : teachers_[number].loaded()) {
    if (base != nullptr && !model->config.adapter) {
      models.emplace_back(base);
      continue;
    }
    models.emplace_back(
        load_model(environment, *model, Role::kTeacher, load_(!configs_[number].parallel.shard_teacher), base));
    if (base == nullptr && models.back().ok()) {
      base = model->config.adapter ? (*models.back())->base() : *models.back();
    }
  }
  return models;
}

int64_t LoadedModels::peer_bytes() const {
  std::vector<const sharding::ModelShards*> models{student.get(), student->base().get()};
  for (const LoadedTeacher& teacher : teachers) {
    for (const auto& model : teacher.weights) {
      models.insert(models.end(), {model.get(), model->base().get()});
    }
  }
  std::sort(models.begin(), models.end());
  models.erase(std::unique(models.begin(), models.end()), models.end());
  int64_t bytes = 0;
  for (const sharding::ModelShards* model : models) {
    bytes += model != nullptr && model->options().peers != nullptr ? model->bytes() : 0;
  }
  return bytes;
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
    const ModelSource& student, const Teachers& teachers, sharding::StateMemory state) {
  const config::ParallelSection& parallel = config.parallel;
  LoadOptions student_load = load_options(config, mesh, /*whole=*/false);
  student_load.state = std::move(state);
  student_load.gradient_dtype = config::scalar_type(config.optimizer.gradients);
  student_load.may_leave_float8 = config.float8.shadow_every > 0;
  FrozenModels frozen(config, environment, teachers, [&](bool whole) { return load_options(config, mesh, whole); });
  auto shared = frozen.base_of_student(student);
  RETURN_IF_ERROR(sharding::agree(mesh, shared.status()));
  // All are read before any is judged, so that one error names the tensors of all.
  auto loaded_student = load_model(environment, student, Role::kStudent, std::move(student_load), *std::move(shared));
  base::ProblemList problems;
  LoadedModels models;
  models.student = problems.take(std::move(loaded_student)).value_or(nullptr);
  std::vector<sharding::ModelShards*> sharded_teachers;
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  for (size_t i = 0; i < teachers.size(); ++i) {
    LoadedTeacher& teacher = models.teachers.emplace_back();
    teacher.spec = teachers[i];
    teacher.spec.set_sources({}); // they have been read, and the files need not stay mapped
    for (auto& model : frozen.load_teacher(i)) {
      teacher.weights.push_back(problems.take(std::move(model)).value_or(nullptr));
      if (configs[i].parallel.shard_teacher) {
        sharded_teachers.push_back(teacher.weights.back().get());
      }
    }
  }
  // If one rank alone has read bad weights, it must not leave the others in the first collective of the slots.
  RETURN_IF_ERROR(sharding::agree(mesh, problems.status()));
  sharding::SlotOptions options = slot_options(config, environment);
  options.slots = parallel.slots;
  options.accumulation = parallel.accumulate == config::Accumulate::kKeepFull ? sharding::Accumulation::kKeepFull
                                                                              : sharding::Accumulation::kReduceEach;
  options.reduce_dtype = config::scalar_type(parallel.reduce_dtype);
  models.slots = sharding::make_slots(options, mesh, models.student.get(), sharded_teachers);
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
