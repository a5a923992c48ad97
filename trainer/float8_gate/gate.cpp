#include "trainer/float8_gate/gate.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/device/host_memory.h"
#include "trainer/device/memory_use.h"

namespace distill::float8_gate {
namespace {

constexpr int64_t kTokensOnGpu = 64 * 1024;
constexpr int64_t kTokensOnCpu = 4 * 1024;
constexpr double kGiB = 1 << 30;

constexpr double kMemoryShare = 0.8; // of what is free, for hidden states; the rest is for a block and its pass

// Memory that this rank has free for tensors.
int64_t free_bytes(const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh) {
  const at::Device device = environment.device;
  int64_t bytes = device.is_cuda() ? device::device_info(device).memory_bytes - device::used_device_bytes(device)
                                   : device::available_host_bytes() / mesh.world_size;
  if (config.memory.limit_gib > 0) {
    bytes = std::min(bytes, static_cast<int64_t>(config.memory.limit_gib * kGiB));
  }
  return bytes;
}

} // namespace

Limits limits_of(const config::Config& config) {
  return {config.float8.max_mean_kl, config.float8.max_p99_kl};
}

int64_t gate_tokens(const config::Config& config, const trainer::Environment& environment) {
  if (config.float8.gate_tokens > 0) {
    return config.float8.gate_tokens;
  }
  return environment.device.is_cuda() ? kTokensOnGpu : kTokensOnCpu;
}

absl::StatusOr<std::vector<data::Batch>> gate_batches(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const models::ModelConfig& teacher, const data::Dataset& data) {
  const int64_t tokens = gate_tokens(config, environment), micro_batch_size = config.train.micro_batch_size;
  const int64_t length = data.options().seq_len;
  const int64_t teacher_length = data.teacher_seq_len() > 0 ? data.teacher_seq_len() : length;
  // The comparison holds every token's hidden state twice, with float8 products and without them.
  const int64_t bytes = 2 * micro_batch_size * teacher_length * teacher.hidden_size *
      static_cast<int64_t>(c10::elementSize(environment.teacher_dtype));
  const int64_t free = free_bytes(config, environment, mesh);
  const auto most = static_cast<int64_t>(kMemoryShare * static_cast<double>(free)) / bytes;
  const int64_t wanted = num_sample_batches(data, micro_batch_size, tokens, mesh);
  if (wanted > most) {
    const int64_t batch_tokens = mesh.samples_together(micro_batch_size) * length;
    return absl::FailedPreconditionError(absl::StrFormat(
        "float8.gate_tokens: expected at most %d tokens, found %d: their hidden states, %s of each micro-batch, are held "
        "in %.0f%% of this rank's free memory, %s",
        most * batch_tokens, wanted * batch_tokens, device::bytes_text(bytes), 100 * kMemoryShare,
        device::bytes_text(free)));
  }
  const bool several = data.options().teachers.size() > 1 && data.options().only_teacher < 0;
  if (several && data.teacher_shares()[static_cast<size_t>(config.this_teacher)] == 0) {
    return absl::FailedPreconditionError(
        "float8.gate: expected documents of this teacher in data.eval or data.train, on which its error is measured, "
        "found none; add some to data.eval, or set float8: {gate: false}");
  }
  return sample_batches(data, micro_batch_size, tokens, mesh, several ? config.this_teacher : -1);
}

namespace {

// nullopt: the model has no float8 products, or float8.gate is false.
absl::StatusOr<std::optional<TeacherError>> measure(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const models::ModelSource& model, const data::Dataset& data) {
  if (!model.config.float8.any() || !config.float8.gate) {
    return std::nullopt;
  }
  const auto batches = gate_batches(config, environment, mesh, model.config, data);
  RETURN_IF_ERROR(sharding::agree(mesh, batches.status())); // the ranks gather weights together from here on
  const std::vector<models::Float8Products> choices{model.config.float8};
  const ComparisonOptions options{config.chunks, config.run.progress, config.memory.forward_tile_tokens()};
  ASSIGN_OR_RETURN(
      const std::vector<TeacherError> errors, teacher_errors(model, environment, mesh, *batches, choices, options));
  return errors.front();
}

} // namespace

absl::StatusOr<std::optional<TeacherError>> measure_base(
    const config::Config& config, trainer::Environment environment, const sharding::Mesh& mesh,
    const models::ModelSource& student, const data::Dataset& data) {
  models::ModelSource base{student.config, student.weights, nullptr};
  base.config.adapter.reset();
  environment.teacher_dtype = environment.student_dtype; // in which the compared model computes
  return measure(config, environment, mesh, base, data);
}

absl::StatusOr<std::optional<TeacherError>> check_teacher(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const models::ModelSource& teacher, const data::Dataset& data) {
  ASSIGN_OR_RETURN(const std::optional<TeacherError> measured, measure(config, environment, mesh, teacher, data));
  if (!measured) {
    return std::nullopt;
  }
  const TeacherError& error = *measured;
  if (const Limits limits = limits_of(config); !limits.hold(error)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "teacher.dtype: float8: expected %s, found %s. Products that stay in the compute dtype bring it down: "
        "`distill quantize%s` with this configuration finds the most sensitive ones and prints "
        "teacher.float8_exceptions; or raise the limit, or set teacher.dtype: %s",
        limits.text(), error.text(),
        config.this_teacher < 0
            ? ""
            : absl::StrCat(" --teacher ", config.teachers[static_cast<size_t>(config.this_teacher)].name),
        models::precision_text({}, environment.teacher_dtype)));
  }
  return error;
}

} // namespace distill::float8_gate
