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
#include "trainer/step/loaded_models.h"
#include "trainer/teacher/aligned_teacher.h"
#include "trainer/teacher/capture_step.h"
#include "trainer/teacher/captured_rows.h"
#include "trainer/teacher/token_batch.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/row_conversion.h"
#include "trainer/tools/verify.h"

namespace distill::trainer {
namespace {

using teacher_cache::Manifest;

// Rebuilds the capture's configuration, as far as the manifest has it.
config::Config config_of(const CacheCheckRequest& request, const Manifest& manifest) {
  config::Config config;
  config.teacher.path = request.teacher;
  config.teacher.cache = request.cache;
  config.teacher.ignore_config_keys = manifest.teacher_keys.ignore_config_keys;
  config.teacher.tokenizer = manifest.teacher_keys.tokenizer;
  if (manifest.vocabulary) { // the teacher's tokens have the numbers of a student, whose tokenizer the cache has
    config.teacher.missing_tokens = manifest.masks ? config::MissingTokens::kMask : config::MissingTokens::kRefuse;
    config.student.tokenizer = absl::StrCat(request.cache, "/", teacher_cache::kHeadFolder);
  }
  if (manifest.own_tokenizer) {
    config.teacher.alignment = config::Alignment::kBytes;
    config.teacher.token_pairs = manifest.teacher_keys.token_pairs;
    config.student.tokenizer = manifest.teacher_keys.student_tokenizer;
  }
  config.teacher.float8_exceptions = manifest.teacher_keys.float8_exceptions;
  config.teacher.dtype = manifest.teacher_keys.float8 ? config::ComputeDtype::kFloat8 : config.teacher.dtype;
  config.train.dtype = manifest.compute_dtype == "bfloat16" ? config::RunDtype::kBFloat16 : config::RunDtype::kFloat32;
  config.data.seq_len = request.seq_len > 0 ? request.seq_len : manifest.seq_len;
  config.data.teacher_seq_len = request.seq_len > 0 ? 0 : manifest.teacher_seq_len;
  config.data.packing = manifest.packing;
  config.data.shuffle = manifest.shuffle;
  config.data.seed = manifest.data_seed;
  config.train.micro_batch_size = std::max<int64_t>(1, manifest.micro_batch_size);
  config.cache.other_contexts = config::OtherContexts::kAllow;
  config.cache.kind = manifest.rows.kind == losses::TeacherKind::kTopK ? config::CacheKind::kTopK
      : manifest.rows.is_sparse()                                      ? config::CacheKind::kSampled
                                                                       : config::CacheKind::kHidden;
  for (const teacher_cache::DataFile& file : manifest.data) {
    auto& sets = file.eval ? config.data.eval : config.data.train;
    if (sets.empty() || sets.back().path != file.source) {
      sets.push_back({file.source, 1.0});
    }
  }
  if (config.data.train.empty()) {
    config.data.train.swap(config.data.eval);
    config.data.shuffle = false;
  }
  return config;
}

// The comparison of a cache's rows with those that the teacher makes now.
struct Difference {
  int64_t tokens = 0;
  int64_t equal = 0; // tokens whose row is the same bit for bit
  double kl_sum = 0, kl_max = 0; // nats: KL(teacher || cache) of hidden states, KL(cache || teacher) of top-k
  double tail_sum = 0; // of top-k: the probability of the tokens that are not stored
  double entropy_sum = 0, gap_sum = 0, gap_square_sum = 0; // of draws: the teacher's entropy, its estimate minus it
};

// A teacher that computes what a cache stores. N tokens, R of them with a target, G hidden size, W bytes of a row.
class Recomputation {
 public:
  Recomputation(
      const config::Config& config, sharding::ModelShards& teacher, const teacher_cache::RowFormat& rows,
      const Vocabulary& vocabulary)
      : config_(config),
        teacher_(teacher),
        rows_(rows),
        step_(config, teacher, rows),
        bias_V_(excluding_biases(
            vocabulary.empty_rows, teacher.config().vocab_size, /*temperature=*/1,
            at::TensorOptions().dtype(teacher.options().compute_dtype).device(teacher.options().device))) {}

  void compare(const data::Batch& batch, Difference& difference) {
    const at::Device device = teacher_.options().device;
    const at::Tensor places_R = places_with_rows(batch);
    const at::Tensor hidden_RG = step_.hidden(batch, places_R);
    const at::Tensor stored_RW = copy_to_device(batch.teacher_rows_NW.index_select(0, places_R), device);
    const at::Tensor now_RW = rows_of_teacher(rows_, batch, teacher_, hidden_RG, config_.chunks);
    difference.tokens += places_R.size(0);
    difference.equal += now_RW.eq(stored_RW).all(1).sum().item<int64_t>();
    losses::LinearHeadInputs inputs;
    const int64_t unit = teacher_.head_unit();
    inputs.weight_VH = teacher_.lm_head_weight();
    if (rows_.is_sparse()) {
      inputs.targets_N = copy_to_device(batch.targets_BS.flatten().index_select(0, places_R), device);
      inputs.valid_tokens = batch.valid_tokens;
      compare_tokens(inputs, hidden_RG, stored_RW, difference);
    } else {
      compare_hidden(inputs, hidden_RG, stored_RW, difference);
    }
    inputs = {};
    teacher_.release(unit);
    teacher_.retire(unit);
  }

 private:
  at::Tensor metrics(const losses::LinearHeadInputs& inputs, const losses::LossOptions& options) const {
    return losses::linear_head(inputs, options, config_.chunks, nullptr).metrics_MN.to(at::kDouble);
  }

  // Compares hidden states. The loss head reads the cache's states as its student.
  void compare_hidden(
      losses::LinearHeadInputs& inputs, const at::Tensor& hidden_RG, const at::Tensor& stored_RW,
      Difference& difference) const {
    inputs.teacher_hidden_NG = hidden_RG;
    inputs.teacher_weight_VG = inputs.weight_VH;
    inputs.bias_V = inputs.teacher_bias_V = bias_V_;
    inputs.hidden_NH = teacher_cache::decode(rows_, stored_RW, hidden_RG.scalar_type());
    inputs.columns = rows_.ranges;
    losses::LossOptions options;
    options.student_softcap = options.teacher_softcap = teacher_.config().final_softcap;
    add_kl(metrics(inputs, options)[losses::kForwardKl], difference);
  }

  // Compares a few tokens. The loss head reads the teacher as its student, and the cache as its teacher.
  void compare_tokens(
      losses::LinearHeadInputs& inputs, const at::Tensor& hidden_RG, const at::Tensor& stored_RW,
      Difference& difference) const {
    inputs.hidden_NH = hidden_RG;
    teacher_cache::give_teacher(rows_, stored_RW, inputs);
    losses::LossOptions options;
    options.divergence = losses::Divergence::kForwardKl;
    options.temperature = rows_.temperature;
    options.student_softcap = rows_.softcap;
    const at::Tensor metrics_MN = metrics(inputs, options);
    if (rows_.kind == losses::TeacherKind::kTopK) {
      add_kl(metrics_MN[losses::kForwardKl], difference);
      difference.tail_sum += inputs.tail_N.clamp_min(0).sum(at::kDouble).item<double>();
      return;
    }
    // The mean of -w log p over draws from p is an unbiased estimate of the entropy of p.
    const at::Tensor gap_N = metrics_MN[losses::kSoft] - metrics_MN[losses::kStudentEntropy];
    difference.entropy_sum += metrics_MN[losses::kStudentEntropy].sum().item<double>();
    difference.gap_sum += gap_N.sum().item<double>();
    difference.gap_square_sum += gap_N.square().sum().item<double>();
  }

  static void add_kl(const at::Tensor& kl_N, Difference& difference) {
    difference.kl_sum += kl_N.sum().item<double>();
    difference.kl_max = std::max(difference.kl_max, kl_N.max().item<double>());
  }

  const config::Config& config_;
  sharding::ModelShards& teacher_;
  teacher_cache::RowFormat rows_;
  CaptureStep step_;
  at::Tensor bias_V_; // excludes rows without a token; undefined: all have one, or the columns say it
};

std::string describe(const teacher_cache::RowFormat& rows, const Difference& found) {
  const auto tokens = static_cast<double>(found.tokens);
  if (rows.kind == losses::TeacherKind::kSampled) {
    const double mean = found.gap_sum / tokens;
    const double error = std::sqrt(std::max(0.0, found.gap_square_sum / tokens - mean * mean) / tokens);
    return absl::StrFormat(
        "the teacher's entropy %.4f nats, by the draws %.4f (%+.2f standard errors)", found.entropy_sum / tokens,
        found.entropy_sum / tokens + mean, error > 0 ? mean / error : 0.0);
  }
  const std::string kl = absl::StrFormat("mean %.3g, largest %.3g nats", found.kl_sum / tokens, found.kl_max);
  return rows.kind == losses::TeacherKind::kTopK
      ? absl::StrFormat(
            "KL(cache || teacher) over the stored tokens and the rest %s; the rest has %.3g%% of the probability", kl,
            100 * found.tail_sum / tokens)
      : absl::StrFormat("KL(teacher || cache) %s", kl);
}

using Place = std::pair<size_t, int64_t>; // of a micro-batch: data set and first sample

// Chooses the micro-batches of all data sets that hold the drawn samples.
std::set<Place> draw(const CaptureInputs& inputs, const CacheCheckRequest& request, int64_t micro) {
  std::vector<int64_t> ends;
  ends.reserve(inputs.data.size());
  for (const auto& data : inputs.data) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + data->num_samples());
  }
  std::mt19937_64 random(static_cast<uint64_t>(request.seed));
  std::set<Place> batches;
  for (int64_t i = 0; i < request.samples; ++i) {
    const int64_t sample = std::uniform_int_distribution<int64_t>(0, ends.back() - 1)(random);
    const auto data = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin());
    const int64_t within = sample - (data == 0 ? 0 : ends[data - 1]);
    batches.emplace(data, within / micro * micro);
  }
  return batches;
}

// Returns the micro-batch that follows; after the last one the first.
Place next_of(const CaptureInputs& inputs, Place place, int64_t micro) {
  place.second += micro;
  return place.second < inputs.data[place.first]->num_samples() ? place
                                                                : Place((place.first + 1) % inputs.data.size(), 0);
}

// Leaves out the stretches whose rows are not in the cache, because it was imported for some documents, or because a
// run of an earlier version began to fill it. In a stream of concatenated documents rows depend on all tokens before
// them, so that a batch is in the cache as a whole or not.
absl::StatusOr<data::Batch> with_rows_alone(data::Batch batch, const teacher_cache::CacheReader& rows) {
  if (batch.teacher_rows_NW.defined()) {
    return batch;
  }
  batch.targets_BS = batch.targets_BS.clone();
  at::Tensor targets_N = batch.targets_BS.flatten();
  std::vector<data::Stretch> there;
  for (const data::Stretch& stretch : batch.stretches) {
    if (batch.packed && rows.has(stretch, /*context=*/0)) {
      there.push_back(stretch);
    } else {
      targets_N.narrow(0, stretch.at, stretch.tokens).fill_(losses::kIgnoreIndex);
    }
  }
  batch.stretches = std::move(there);
  batch.valid_tokens = targets_N.ne(losses::kIgnoreIndex).sum().item<int64_t>();
  if (batch.valid_tokens > 0) {
    ASSIGN_OR_RETURN(batch.teacher_rows_NW, rows.read(batch));
  }
  return batch;
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
  ASSIGN_OR_RETURN(Environment environment, resolve_environment(config));
  configure_libtorch(config.train, environment);
  ASSIGN_OR_RETURN(CaptureInputs inputs, open_capture_inputs(config, environment));
  ASSIGN_OR_RETURN(const auto index, teacher_cache::Index::open(request.cache));
  std::vector<std::shared_ptr<teacher_cache::CacheReader>> rows;
  for (const auto& data : inputs.data) {
    ASSIGN_OR_RETURN(
        rows.emplace_back(), attach_rows(config, environment, index, *data, "the cache's data", /*partial=*/true));
  }
  ASSIGN_OR_RETURN(
      const auto teacher,
      load_model(environment, inputs.teacher.model(), Role::kTeacher, {.progress = config::ProgressStyle::kAuto}));
  Recomputation again(config, *teacher, manifest.rows, inputs.teacher.vocabulary());
  Difference difference;
  const int64_t micro = config.train.micro_batch_size;
  const auto batches = draw(inputs, request, micro);
  size_t all = 0; // micro-batches
  for (const auto& data : inputs.data) {
    all += static_cast<size_t>((data->num_samples() + micro - 1) / micro);
  }
  metrics::TaskProgress progress(
      "computing again", static_cast<int64_t>(batches.size()), "micro-batches", config::ProgressStyle::kAuto);
  std::set<Place> seen;
  for (Place place : batches) {
    // The search goes from the place that was drawn to the next one that has rows and was not compared.
    for (int64_t compared = 0; compared == 0 && seen.size() < all;) {
      if (seen.insert(place).second) {
        const auto& [data, first] = place;
        const int64_t count = std::min(micro, inputs.data[data]->num_samples() - first);
        ASSIGN_OR_RETURN(data::Batch whole, inputs.data[data]->batch(first, count));
        ASSIGN_OR_RETURN(const data::Batch batch, with_rows_alone(std::move(whole), *rows[data]));
        compared = batch.valid_tokens;
        if (compared > 0) {
          again.compare(batch, difference);
        }
      }
      place = next_of(inputs, place, micro);
    }
    progress.add(1);
  }
  if (difference.tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.cache, ": expected tokens with a target in ", request.samples, " samples, found none"));
  }
  report(absl::StrFormat(
      "%s: %d tokens computed again with %s in sequences of %d (captured in %d, %s): %s; %d rows (%.4g%%) are the same "
      "bit for bit",
      request.cache, difference.tokens, request.teacher, config.data.seq_len, manifest.seq_len, manifest.precision,
      describe(manifest.rows, difference), difference.equal,
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
