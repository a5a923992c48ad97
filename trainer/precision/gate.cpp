#include "trainer/precision/gate.h"

#include "data/base/status_macros.h"

namespace distill::precision {
namespace {

constexpr int64_t kTokensOnGpu = 64 * 1024;
constexpr int64_t kTokensOnCpu = 4 * 1024;

std::string limits_text(const Limits& limits) {
  std::string text = absl::StrFormat("a mean KL of at most %g nats (float8.max_mean_kl)", limits.mean_kl);
  if (limits.p99_kl > 0) {
    absl::StrAppendFormat(&text, " and a 99th percentile of at most %g (float8.max_p99_kl)", limits.p99_kl);
  }
  return text;
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

absl::StatusOr<std::optional<TeacherError>> check_teacher(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const trainer::ModelSource& teacher, const data::Dataset& data) {
  if (!teacher.config.float8.any() || !config.float8.gate) {
    return std::nullopt;
  }
  const auto batches = sample_batches(data, config.train.micro_batch_size, gate_tokens(config, environment), mesh);
  RETURN_IF_ERROR(sharding::agree(mesh, batches.status())); // the ranks gather weights together from here on
  const std::vector<Variant> variants{teacher.config.float8};
  const WalkOptions options{config.chunks, config.run.progress};
  ASSIGN_OR_RETURN(
      const std::vector<TeacherError> errors, teacher_errors(teacher, environment, mesh, *batches, variants, options));
  const TeacherError& error = errors.front();
  if (const Limits limits = limits_of(config); !limits.hold(error)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "teacher.dtype: float8: expected %s, found %s. Products that stay in the compute dtype bring it down: "
        "`distill quantize` with this configuration finds the most sensitive ones and prints "
        "teacher.float8_exceptions; or raise the limit, or set teacher.dtype: bfloat16",
        limits_text(limits), error.text()));
  }
  return error;
}

} // namespace distill::precision
