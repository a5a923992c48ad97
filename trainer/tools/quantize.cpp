#include "trainer/tools/quantize.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/device/device_info.h"
#include "trainer/float8_gate/gate.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/resolve_environment.h"

namespace distill::trainer {
namespace {

constexpr double kMemoryShare = 0.4; // of the device's, for the hidden states of the search's variants
constexpr size_t kRowsShown = 16; // of products that stay in float8

using Json = nlohmann::ordered_json;

Json error_json(const float8_gate::TeacherError& error) {
  return {
      {"mean_kl", error.mean_kl},
      {"p99_kl", error.p99_kl},
      {"agreement", error.agreement},
      {"cross_entropy", error.cross_entropy},
      {"float8_cross_entropy", error.float8_cross_entropy},
      {"tokens", error.tokens}};
}

// Makes the configuration of an evaluation of the teacher against itself, in float8 as the file has it.
absl::StatusOr<config::Config> teacher_config(EvaluationRequest request) {
  std::vector<std::string> overrides{"teacher.dtype=float8"};
  overrides.insert(overrides.end(), request.overrides.begin(), request.overrides.end());
  request.overrides = std::move(overrides);
  request.purpose = config::Purpose::kQuantize;
  return evaluation_config(request);
}

std::string product_name(const models::BlockProduct& product) {
  return absl::StrCat(product.block, ".", product.product);
}

} // namespace

absl::StatusOr<QuantizeReport> quantize_teacher(const QuantizeRequest& request) {
  ASSIGN_OR_RETURN(config::Config config, teacher_config(request.models));
  if (config.teacher.path.empty()) {
    return absl::InvalidArgumentError(
        "teacher.path: expected the folder of the teacher (or --teacher DIR), found none");
  }
  config.float8.max_mean_kl = request.max_mean_kl > 0 ? request.max_mean_kl : config.float8.max_mean_kl;
  config.float8.gate_tokens = request.tokens > 0 ? request.tokens : config.float8.gate_tokens;
  ASSIGN_OR_RETURN(Environment environment, resolve_environment(config));
  configure_libtorch(config.train, environment);
  ASSIGN_OR_RETURN(const Inputs inputs, open_inputs(config, environment, config::Purpose::kQuantize));
  const auto start = std::chrono::steady_clock::now();
  const sharding::Mesh mesh;
  ASSIGN_OR_RETURN(
      const std::vector<data::Batch> batches,
      float8_gate::gate_batches(
          config, environment, mesh, inputs.teachers.front().model().config,
          inputs.eval_data ? *inputs.eval_data : *inputs.train_data));
  const auto memory =
      static_cast<int64_t>(kMemoryShare * static_cast<double>(device::device_info(environment.device).memory_bytes));
  QuantizeReport report;
  report.limits = float8_gate::limits_of(config);
  ASSIGN_OR_RETURN(
      report.search,
      float8_gate::find_exceptions(
          inputs.teachers.front().model(), environment, mesh, batches, report.limits,
          {config.chunks, config.run.progress, config.memory.forward_tile_tokens()}, memory));
  report.what = absl::StrFormat(
      "%s: %s against the same in %s, on %s, sequences of %d tokens", config.teacher.path,
      models::precision_text(inputs.teachers.front().model().config, environment.teacher_dtype),
      models::precision_text({}, environment.teacher_dtype), environment.device.str(), config.data.seq_len);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string QuantizeReport::text() const {
  std::string text = absl::StrFormat("%s\n  float8: %s\n", what, search.before.text());
  if (!search.effects.empty()) {
    absl::StrAppend(&text, "  product        mean KL alone   of operations\n");
    size_t kept = 0;
    for (const float8_gate::ProductError& effect : search.effects) {
      if (effect.kept && ++kept > kRowsShown) {
        continue;
      }
      absl::StrAppendFormat(
          &text, "  %-14s %13.4g %14.2f%%%s\n", product_name(effect.product), effect.mean_kl, 100 * effect.operations,
          effect.kept ? "" : "   given back");
    }
    if (kept > kRowsShown) {
      absl::StrAppendFormat(&text, "  ... and %d more, with less KL for their operations\n", kept - kRowsShown);
    }
    absl::StrAppendFormat(&text, "  with the exceptions: %s\n", search.after.text());
  }
  absl::StrAppendFormat(&text, "  %.1f s\n", seconds);
  if (!search.found) {
    absl::StrAppend(&text, "not within ", limits.text(), ", whatever stays in the compute dtype\n");
    return text;
  }
  absl::StrAppend(&text, "within ", limits.text(), " with\nteacher:\n  dtype: float8\n");
  if (!search.exceptions.empty()) {
    absl::StrAppend(&text, "  float8_exceptions: [", absl::StrJoin(search.exceptions, ", "), "]\n");
  }
  return text;
}

std::string QuantizeReport::json() const {
  Json json{
      {"before", error_json(search.before)},
      {"after", error_json(search.after)},
      {"max_mean_kl", limits.mean_kl},
      {"max_p99_kl", limits.p99_kl}, // 0: not limited
      {"found", search.found},
      {"float8_exceptions", search.exceptions},
      {"products", Json::array()}};
  for (const float8_gate::ProductError& effect : search.effects) {
    json["products"].push_back(
        {{"product", product_name(effect.product)},
         {"mean_kl", effect.mean_kl},
         {"operations", effect.operations},
         {"float8", effect.kept}});
  }
  return json.dump();
}

} // namespace distill::trainer
