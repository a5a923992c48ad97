#include "trainer/tools/verify_cache.h"

#include <ATen/ATen.h>
#include <absl/strings/str_format.h>

#include <random>
#include <set>

#include "data/base/status_macros.h"
#include "losses/head/linear_head.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/setup/cached_teacher.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/sharding/passes.h"
#include "trainer/step/token_batch.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/tools/verify.h"

namespace distill::trainer {
namespace {

using teacher_cache::Manifest;

// The capture's configuration, as far as the manifest has it.
config::Config config_of(const CacheCheckRequest& request, const Manifest& manifest) {
  config::Config config;
  config.teacher.path = request.teacher;
  config.teacher.cache = request.cache;
  config.train.dtype =
      manifest.compute_dtype == "bfloat16" ? config::ComputeDtype::kBFloat16 : config::ComputeDtype::kFloat32;
  config.data.seq_len = request.seq_len > 0 ? request.seq_len : manifest.seq_len;
  config.data.teacher_seq_len = request.seq_len > 0 ? 0 : manifest.teacher_seq_len;
  config.train.micro_batch_size = std::max<int64_t>(1, manifest.micro_batch_size);
  config.cache.other_contexts = config::OtherContexts::kAllow;
  for (const teacher_cache::DataFile& file : manifest.data) {
    auto& sets = file.eval ? config.data.eval : config.data.train;
    if (sets.empty() || sets.back().path != file.source) {
      sets.push_back({file.source, 1.0});
    }
  }
  if (config.data.train.empty()) {
    config.data.train.swap(config.data.eval);
  }
  return config;
}

struct Difference {
  int64_t tokens = 0;
  int64_t equal = 0; // tokens whose hidden state is the same bit for bit
  double kl_sum = 0, kl_max = 0; // KL(teacher || cache), nats
};

// A teacher that computes what a cache stores.
class Recomputation {
 public:
  Recomputation(const config::Config& config, sharding::ModelShards& teacher, teacher_cache::RowFormat rows)
      : config_(config),
        teacher_(teacher),
        rows_(rows),
        rope_(models::make_rope_table(
            teacher.config(), std::max(config.data.seq_len, config.data.teacher_length()), teacher.options().device)) {}

  void compare(const data::Batch& batch, Difference& difference) const {
    const at::Device device = teacher_.options().device;
    at::Tensor hidden_NG = sharding::forward_hidden(teacher_, rope_, teacher_token_batch(batch, device));
    if (batch.teacher) {
      hidden_NG = hidden_NG.index_select(0, copy_to_device(batch.teacher->rows_BS.flatten(), device));
    }
    const at::Tensor counts_N = copy_to_device(batch.targets_BS.flatten().ne(losses::kIgnoreIndex), device);
    const at::Tensor rows_NW = copy_to_device(batch.teacher_rows_NW, device);
    // What the cache would hold if it were written now.
    const at::Tensor same_N = teacher_cache::encode(rows_, hidden_NG).eq(rows_NW).all(1).logical_and(counts_N);
    losses::LinearHeadInputs inputs;
    inputs.targets_N = copy_to_device(batch.targets_BS.flatten(), device);
    inputs.valid_tokens = batch.valid_tokens;
    inputs.teacher_hidden_NG = hidden_NG;
    inputs.hidden_NH = teacher_cache::decode(rows_, rows_NW, hidden_NG.scalar_type());
    const int64_t unit = teacher_.head_unit();
    inputs.weight_VH = inputs.teacher_weight_VG =
        models::lm_head_weight(teacher_.unit(unit).layout, teacher_.weights(unit));
    const at::Tensor kl_N =
        losses::linear_head(inputs, losses::LossOptions{}, config_.chunks, nullptr).metrics_MN[losses::kForwardKl];
    teacher_.release(unit);
    difference.tokens += batch.valid_tokens;
    difference.equal += same_N.sum().item<int64_t>();
    difference.kl_sum += kl_N.sum(at::kDouble).item<double>();
    difference.kl_max = std::max(difference.kl_max, kl_N.max().item<double>());
  }

 private:
  const config::Config& config_;
  sharding::ModelShards& teacher_;
  teacher_cache::RowFormat rows_;
  models::RopeTable rope_;
};

// The micro-batches of all data sets that hold the drawn samples: data set and first sample.
std::set<std::pair<size_t, int64_t>> draw(
    const CaptureInputs& inputs, const CacheCheckRequest& request, int64_t micro) {
  std::vector<int64_t> ends;
  ends.reserve(inputs.data.size());
  for (const auto& data : inputs.data) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + data->num_samples());
  }
  std::mt19937_64 random(static_cast<uint64_t>(request.seed));
  std::set<std::pair<size_t, int64_t>> batches;
  for (int64_t i = 0; i < request.samples; ++i) {
    const int64_t sample = std::uniform_int_distribution<int64_t>(0, ends.back() - 1)(random);
    const auto data = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin());
    const int64_t within = sample - (data == 0 ? 0 : ends[data - 1]);
    batches.emplace(data, within / micro * micro);
  }
  return batches;
}

absl::Status recompute(
    const CacheCheckRequest& request, const Manifest& manifest, const std::function<void(const std::string&)>& report) {
  const config::Config config = config_of(request, manifest);
  ASSIGN_OR_RETURN(const base::Digest hash, teacher_cache::teacher_hash(config));
  if (hash != manifest.teacher_hash) {
    return absl::FailedPreconditionError(absl::StrCat(
        request.cache, ": teacher_hash: expected ", base::hex(hash), " (", request.teacher, "), found ",
        base::hex(manifest.teacher_hash), " (captured from ", manifest.teacher, ")"));
  }
  ASSIGN_OR_RETURN(const Environment environment, resolve_environment(config));
  configure_libtorch(config.train, environment.device);
  ASSIGN_OR_RETURN(CaptureInputs inputs, open_capture_inputs(config, environment));
  ASSIGN_OR_RETURN(const auto index, teacher_cache::Index::open(request.cache));
  for (const auto& data : inputs.data) {
    RETURN_IF_ERROR(attach_rows(config, environment, index, *data, "the cache's data").status());
  }
  ASSIGN_OR_RETURN(
      const auto teacher,
      load_model(environment, inputs.teacher, Role::kTeacher, {.progress = config::ProgressStyle::kAuto}));
  const Recomputation again(config, *teacher, manifest.rows);
  Difference difference;
  const int64_t micro = config.train.micro_batch_size;
  const auto batches = draw(inputs, request, micro);
  metrics::TaskProgress progress(
      "computing again", static_cast<int64_t>(batches.size()), "micro-batches", config::ProgressStyle::kAuto);
  for (const auto& [data, first] : batches) {
    const int64_t count = std::min(micro, inputs.data[data]->num_samples() - first);
    ASSIGN_OR_RETURN(const data::Batch batch, inputs.data[data]->batch(first, count));
    if (batch.valid_tokens > 0) {
      again.compare(batch, difference);
    }
    progress.add(1);
  }
  if (difference.tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.cache, ": expected tokens with a target in ", request.samples, " samples, found none"));
  }
  report(absl::StrFormat(
      "%s: %d tokens computed again with %s in sequences of %d (captured in %d, %s): KL(teacher || cache) mean %.3g, "
      "largest %.3g nats; %d rows (%.4g%%) are the same bit for bit",
      request.cache, difference.tokens, request.teacher, config.data.seq_len, manifest.seq_len, manifest.precision,
      difference.kl_sum / static_cast<double>(difference.tokens), difference.kl_max, difference.equal,
      100.0 * static_cast<double>(difference.equal) / static_cast<double>(difference.tokens)));
  return absl::OkStatus();
}

} // namespace

absl::Status check_cache(const CacheCheckRequest& request, const std::function<void(const std::string&)>& report) {
  ASSIGN_OR_RETURN(const Manifest manifest, teacher_cache::read_manifest(request.cache));
  RETURN_IF_ERROR(verify(request.cache, report));
  return request.teacher.empty() ? absl::OkStatus() : recompute(request, manifest, report);
}

} // namespace distill::trainer
