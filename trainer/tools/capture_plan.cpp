#include "trainer/tools/capture_plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/device/device_info.h"
#include "trainer/setup/disk_space.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::trainer {
namespace {

std::string gigabytes(int64_t bytes) {
  return absl::StrFormat("%.3g GB", 1e-9 * static_cast<double>(bytes));
}

// Tokens of a document's stretch that may have a target.
int64_t count_rows(const data::Stretch& stretch) {
  const data::Shard& shard = *stretch.shard;
  const int64_t begin = shard.document_begin(stretch.document) + stretch.begin;
  const int64_t end = std::min(begin + stretch.tokens, shard.document_begin(stretch.document + 1) - 1);
  if (!shard.has_loss_mask()) {
    return std::max<int64_t>(0, end - begin);
  }
  int64_t rows = 0;
  for (int64_t token = begin; token < end; ++token) {
    rows += shard.in_loss(token + 1) ? 1 : 0;
  }
  return rows;
}

} // namespace

absl::StatusOr<CapturePlan> plan_capture(
    const config::Config& config, const Environment& environment, const CaptureInputs& inputs, int64_t world_size,
    int64_t ranks_on_host) {
  CapturePlan plan;
  teacher_cache::Manifest& manifest = plan.manifest;
  const models::ModelConfig& teacher = inputs.teacher.config;
  ASSIGN_OR_RETURN(manifest, make_manifest(config, environment, teacher, inputs.data));
  manifest.micro_batch_size = config.train.micro_batch_size;
  const int64_t micro_tokens = config.train.micro_batch_size * config.data.seq_len;
  const int64_t micro_batches = (config.cache.part_tokens + micro_tokens - 1) / micro_tokens;
  manifest.part_samples = micro_batches * config.train.micro_batch_size;
  int64_t stretches = 0;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const data::Dataset& data = *inputs.data[i];
    for (int64_t first = 0; first < data.num_samples(); first += manifest.part_samples) {
      plan.parts.push_back(
          {static_cast<int64_t>(i), first, std::min(manifest.part_samples, data.num_samples() - first)});
    }
    data.for_each_stretch([&](const data::Stretch& stretch) {
      ++stretches;
      plan.rows += count_rows(stretch);
    });
  }
  manifest.parts = static_cast<int64_t>(plan.parts.size());
  const int64_t head = manifest.rows.is_sparse() ? 0
                                                 : static_cast<int64_t>(c10::elementSize(environment.teacher_dtype)) *
          (teacher.vocab_size + 1) * teacher.hidden_size;
  plan.bytes = plan.rows * manifest.rows.row_bytes() + head +
      stretches * static_cast<int64_t>(sizeof(teacher_cache::StretchEntry)) +
      manifest.parts * static_cast<int64_t>(sizeof(teacher_cache::PartHead) + sizeof(teacher_cache::PartFoot));
  const int64_t memory = device::device_info(environment.device).memory_bytes;
  ASSIGN_OR_RETURN(
      plan.memory,
      plan::predict_capture(
          config, teacher, manifest.rows, {environment, world_size, ranks_on_host}, manifest.teacher_seq_len > 0,
          environment.device.is_cuda() ? memory : memory / std::max<int64_t>(1, ranks_on_host)));
  if (config.memory.on_overflow == config::OnOverflow::kRefuse) {
    RETURN_IF_ERROR(plan::check_fits(plan.memory));
  }
  return plan;
}

std::string CapturePlan::text(const std::string& folder) const {
  return absl::StrFormat(
      "cache: %s, %d parts, %d tokens with a target of %d bytes each (%s), %s", folder, manifest.parts, rows,
      manifest.rows.row_bytes(), describe(manifest.rows), gigabytes(bytes));
}

absl::Status check_space(const CapturePlan& plan, const std::string& folder, int64_t found) {
  const DiskSpace space = disk_space(folder);
  const int64_t needed = std::max<int64_t>(0, plan.bytes - found);
  if (space.available_bytes < 0 || space.available_bytes >= needed) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "teacher.cache: expected %s of disk for the %s of the cache that are not there yet, found %s in %s; free some "
      "space, name another folder, or store less (cache.kind, cache.dtype)",
      gigabytes(needed), gigabytes(needed), gigabytes(space.available_bytes), space.place));
}

} // namespace distill::trainer
