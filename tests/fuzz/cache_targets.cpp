#include "tests/fuzz/cache_targets.h"

#include <ATen/ATen.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "data/base/checksum.h"
#include "data/base/status_macros.h"
#include "data/dataset.h"
#include "data/shard_writer.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/targets.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/cache_reader.h"
#include "trainer/teacher_cache/manifest.h"
#include "trainer/teacher_cache/part_file.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::fuzz {
namespace {

// A data set of two shards, which the manifest of the parts below is of, and its cache's folder.
struct CachedData {
  std::shared_ptr<data::Dataset> data;
  teacher_cache::Manifest manifest;
  std::string folder = own_folder() + "/cache";
};

const CachedData& cached_data() {
  static const CachedData made = [] {
    CachedData cached;
    data::ShardSpec spec;
    spec.vocab_size = 100;
    spec.loss_mask = true;
    data::DataOptions options;
    options.seq_len = 8;
    for (const auto& lengths : {std::vector<size_t>{9, 40}, {3, 8, 20}}) {
      data::ShardWriter writer(spec);
      for (const size_t length : lengths) {
        std::vector<uint8_t> in_loss(length, 1);
        in_loss[length / 2] = 0;
        TORCH_CHECK(writer.add(std::vector<uint32_t>(length, 7), in_loss).ok());
      }
      options.sources.push_back({absl::StrCat(own_folder(), "/", options.sources.size(), ".dtok"), 1.0});
      TORCH_CHECK(writer.write(options.sources.back().path).ok());
    }
    cached.data = *data::Dataset::open(options);
    cached.manifest.rows = {teacher_cache::Encoding::kInt8, 1}; // of three bytes, as the corpus has them
    cached.manifest.vocab_size = 100;
    cached.manifest.compute_dtype = "float32";
    cached.manifest.seq_len = options.seq_len;
    for (const data::Shard* shard : cached.data->shards()) {
      cached.manifest.data.push_back({shard->path(), "data", false, {}, shard->documents(), shard->tokens()});
      std::copy_n(shard->header().header_hash, 32, cached.manifest.data.back().header_hash.begin());
    }
    std::filesystem::create_directories(cached.folder);
    TORCH_CHECK(teacher_cache::begin_cache(cached.folder, cached.manifest).ok());
    return cached;
  }();
  return made;
}

// What a run does with a part that is the first of a cache: looks for the stretches of its data, and reads their rows.
absl::Status read_rows_of(const std::string& part) {
  const CachedData& cached = cached_data();
  file_with(reinterpret_cast<const uint8_t*>(part.data()), part.size(), "cache/part-00000000.dtc");
  ASSIGN_OR_RETURN(const auto index, teacher_cache::Index::open(cached.folder));
  for (uint32_t shard = 0; shard < cached.manifest.data.size(); ++shard) {
    const auto tokens = static_cast<uint64_t>(cached.manifest.data[shard].tokens);
    for (uint32_t document = 0; document < cached.manifest.data[shard].documents; ++document) {
      for (const teacher_cache::StretchPlace& place : index->document(shard, document)) {
        TORCH_CHECK(
            place.entry.begin <= tokens && place.entry.tokens <= tokens - place.entry.begin,
            "a stretch outside of its shard");
      }
    }
  }
  for (const bool other_contexts : {false, true}) {
    ASSIGN_OR_RETURN(
        const auto rows,
        teacher_cache::CacheReader::open(
            index, *cached.data, {.data_key = kSource, .partial = true, .other_contexts = other_contexts}));
    for (int64_t sample = 0; sample < cached.data->num_samples(); ++sample) {
      ASSIGN_OR_RETURN(const data::Batch batch, cached.data->batch(sample, 1));
      const auto read = rows->read(batch);
      TORCH_CHECK(
          read.ok() || absl::StrContains(read.status().message(), kSource), "an error without a file: ", read.status());
    }
  }
  return absl::OkStatus();
}

} // namespace

absl::Status read_cache_manifest(const uint8_t* data, size_t size) {
  const auto manifest = teacher_cache::parse_manifest(text(data, size), kSource);
  if (!manifest.ok()) {
    return manifest.status();
  }
  const auto again = teacher_cache::parse_manifest(teacher_cache::to_json(*manifest), kSource);
  TORCH_CHECK(again.ok() && again->id() == manifest->id(), "a manifest does not read back");
  TORCH_CHECK(teacher_cache::differences(*manifest, *again).empty(), "a manifest differs from itself");
  return absl::OkStatus();
}

absl::Status read_cache_rows(const uint8_t* data, size_t size) {
  using losses::TeacherKind;
  if (size == 0) {
    return absl::DataLossError(absl::StrCat(kSource, ": empty"));
  }
  teacher_cache::RowFormat format;
  format.kind = (data[0] & 1) != 0 ? TeacherKind::kTopK : TeacherKind::kSampled;
  const bool half = format.kind == TeacherKind::kTopK && (data[0] & 2) != 0;
  format.encoding = half ? teacher_cache::Encoding::kFloat16 : teacher_cache::Encoding::kFloat32;
  format.exponent = (data[0] & 4) != 0 ? 0.5 : 1;
  format.columns = (data[0] & 8) != 0 ? 70000 : 300; // ids of three and of two bytes
  format.entries = 1 + (data[0] >> 4);
  TORCH_CHECK(teacher_cache::validate(format).ok(), "a format that is fine is refused");
  const auto count = static_cast<int64_t>(size - 1) / format.row_bytes();
  if (const absl::Status fit = teacher_cache::check_rows(format, data + 1, count); !fit.ok()) {
    return absl::DataLossError(absl::StrCat(kSource, ": ", std::string(fit.message())));
  }
  // Rows that pass are what the loss head takes: distinct columns, and numbers.
  const bool topk = format.kind == TeacherKind::kTopK;
  const teacher_cache::SparseRows rows = teacher_cache::decode_sparse(
      format, at::from_blob(const_cast<uint8_t*>(data + 1), {count, format.row_bytes()}, at::kByte));
  const at::Tensor values = rows.values_RK.to(at::kFloat);
  for (int64_t row = 0; row < count; ++row) {
    std::set<int32_t> seen;
    for (int64_t i = 0; i < format.entries; ++i) {
      const int32_t id = rows.ids_RK.const_data_ptr<int32_t>()[row * format.entries + i];
      TORCH_CHECK(id >= -1 && id < format.columns, "an id outside of the vocabulary");
      TORCH_CHECK(!topk || id < 0 || seen.insert(id).second, "an id twice");
      const float value = values.const_data_ptr<float>()[row * format.entries + i];
      TORCH_CHECK(id < 0 || !std::isnan(value), "no number");
    }
  }
  return absl::OkStatus();
}

absl::Status read_cache_part(const uint8_t* input, size_t size) {
  using teacher_cache::PartFoot, teacher_cache::PartHead;
  // Checksums stop nearly every change; where they are made to fit, what stands behind them is reached.
  std::string bytes(text(input, size));
  const bool mended = size >= sizeof(PartHead) + sizeof(PartFoot) && size % 2 == 1; // the corpus' part has an odd size
  if (mended) {
    PartFoot foot;
    char* at = bytes.data() + size - sizeof(foot);
    std::memcpy(&foot, at, sizeof(foot));
    foot.file_bytes = size;
    PartHead head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    const base::Digest id = cached_data().manifest.id();
    std::copy(id.begin(), id.end(), head.cache_id);
    head.part = 0;
    std::memcpy(bytes.data(), &head, sizeof(head));
    const size_t entry = teacher_cache::stretch_bytes(head.version);
    const size_t table = std::min(foot.stretches, size / entry) * entry;
    const size_t before = size - sizeof(PartHead) - sizeof(foot);
    foot.table_checksum = base::checksum(at - std::min(table, before), std::min(table, before));
    base::Checksum sum;
    sum.update(bytes.data(), sizeof(PartHead));
    sum.update(&foot, offsetof(PartFoot, checksum));
    foot.checksum = sum.value();
    std::memcpy(at, &foot, sizeof(foot));
  }
  const auto index = teacher_cache::parse_part(bytes, kSource);
  if (!index.ok()) {
    return index.status();
  }
  for (size_t i = 0; i < index->stretches.size(); ++i) {
    const uint64_t end = index->offsets[i] + index->stretches[i].rows * index->head.row_bytes;
    TORCH_CHECK(index->offsets[i] >= sizeof(PartHead) && end <= size, "rows outside of their file");
  }
  return mended ? read_rows_of(bytes) : absl::OkStatus();
}

} // namespace distill::fuzz
