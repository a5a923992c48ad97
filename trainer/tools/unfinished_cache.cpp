#include "trainer/tools/unfinished_cache.h"

#include <absl/strings/str_format.h>

#include "data/base/status_macros.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/contexts.h"

namespace distill::trainer {
namespace {

using teacher_cache::DataFile;

bool has_all(const std::vector<DataFile>& all, const std::vector<DataFile>& some) {
  return std::all_of(some.begin(), some.end(), [&](const DataFile& file) {
    return std::any_of(
        all.begin(), all.end(), [&](const DataFile& other) { return other.header_hash == file.header_hash; });
  });
}

} // namespace

absl::StatusOr<std::unique_ptr<UnfinishedCache>> UnfinishedCache::open(
    const config::Config& config, const Environment& environment, const CaptureInputs& inputs,
    teacher_cache::Manifest& manifest) {
  const std::string& folder = config.teacher.cache;
  const auto found = teacher_cache::read_manifest(folder);
  if (absl::IsNotFound(found.status())) {
    return nullptr;
  }
  RETURN_IF_ERROR(found.status());
  teacher_cache::Manifest own = manifest;
  own.micro_batch_size = found->micro_batch_size;
  own.part_samples = found->part_samples;
  own.parts = found->parts;
  own.head = found->head;
  own.data = found->data;
  // What else differs is another cache, and is said where the manifests are compared.
  if (!found->open_ended() || !teacher_cache::differences(own, *found).empty()) {
    return nullptr;
  }
  if (!has_all(found->data, manifest.data)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "teacher.cache: %s was begun by a training run, for its data.train alone: expected no other token shards, found "
        "%d shards, of which it has %d; set data.eval: [] to complete it, or name another folder",
        folder, manifest.data.size(), found->data.size()));
  }
  manifest = std::move(own);
  std::unique_ptr<UnfinishedCache> cache(new UnfinishedCache(inputs));
  ASSIGN_OR_RETURN(const auto index, teacher_cache::Index::open(folder));
  for (const auto& data : inputs.data) {
    ASSIGN_OR_RETURN(
        cache->rows_.emplace_back(),
        teacher_cache::CachedRows::open(index, *data, {.data_key = "data.train", .partial = true}));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> parts, teacher_cache::complete_parts(folder));
  cache->next_part_ = parts.empty() ? 0 : parts.back() + 1;
  return cache;
}

absl::StatusOr<std::vector<CapturePart>> UnfinishedCache::missing(const std::vector<CapturePart>& planned) const {
  std::vector<CapturePart> parts;
  for (const CapturePart& whole : planned) {
    for (const data::SampleRange& range : whole.micro_batches) {
      ASSIGN_OR_RETURN(
          const data::Batch batch, inputs_.data[static_cast<size_t>(whole.data)]->batch(range.first, range.count));
      const std::vector<uint64_t> contexts = teacher_cache::contexts_of(batch);
      bool all = true;
      for (size_t i = 0; i < contexts.size(); ++i) {
        all = all && has(whole.data, batch.stretches[i], contexts[i]);
      }
      if (all) {
        continue;
      }
      const bool full = !parts.empty() && parts.back().micro_batches.size() == planned.front().micro_batches.size();
      if (parts.empty() || full || parts.back().data != whole.data) {
        parts.push_back({next_part_ + static_cast<int64_t>(parts.size()), whole.data, {}});
      }
      parts.back().micro_batches.push_back(range);
    }
  }
  return parts;
}

} // namespace distill::trainer
