#include "tests/fuzz/targets.h"

#include <ATen/ATen.h>
#include <absl/strings/match.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/base/checksum.h"
#include "data/base/sha256.h"
#include "data/base/status_macros.h"
#include "data/dataset.h"
#include "data/inspect.h"
#include "data/shard.h"
#include "data/shard_format.h"
#include "data/teacher_text.h"
#include "data/token_text.h"
#include "data/tokenizer.h"
#include "data/vocabulary_map.h"
#include "tests/fuzz/cache_targets.h"
#include "tests/fuzz/input_file.h"
#include "trainer/checkpoint/index.h"
#include "trainer/config/dump.h"
#include "trainer/config/reader.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/safetensors.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"
#include "trainer/plan/machine.h"
#include "trainer/run_folder/events.h"
#include "trainer/run_folder/recorded_metrics.h"

namespace distill::fuzz {
namespace {

absl::Status read_samples(const data::Dataset& dataset, int64_t first) {
  for (int64_t sample = first; sample < first + std::min<int64_t>(dataset.num_samples(), 64); ++sample) {
    const auto batch = dataset.batch(sample, 1);
    if (!batch.ok()) {
      return batch.status();
    }
    if (batch->teacher) {
      const at::Tensor rows = batch->teacher->rows_BS;
      const bool inside =
          rows.min().item<int64_t>() >= 0 && rows.max().item<int64_t>() < batch->teacher->tokens_BT.numel();
      TORCH_CHECK(inside, "a row of the teacher's that does not exist");
    }
  }
  return absl::OkStatus();
}

// Plans rows of an accepted shard and reads some; then as a run that has begun with another length and packing.
absl::Status read_samples(
    const std::string& path, data::PackingMode packing, data::PackingMode packing_before, bool teacher_stream = false) {
  data::DataOptions options;
  options.sources = {{path, 1.0}};
  options.seq_len = 16;
  options.packing = packing;
  options.teacher_seq_len = 24;
  options.teacher_stream = teacher_stream;
  const auto dataset = data::Dataset::open(options);
  if (!dataset.ok()) {
    return dataset.status();
  }
  if (absl::Status status = read_samples(**dataset, 0); !status.ok()) {
    return status;
  }
  constexpr int64_t kChange = 5;
  const auto lines =
      (*dataset)->continue_from({{0, 7, packing_before}, {kChange, options.seq_len, packing, options.teacher_seq_len}});
  return lines.ok() ? read_samples(**dataset, kChange) : lines.status();
}

} // namespace

absl::Status read_config_yaml(const uint8_t* data, size_t size) {
  const config::ReadResult result = config::read(text(data, size), kSource, {});
  if (!result.problems.empty()) {
    return absl::InvalidArgumentError(config::report(result.problems));
  }
  const config::ReadResult again = config::read(config::dump(result.config), kSource, {});
  TORCH_CHECK(again.problems.empty(), "a configuration that was read does not read back from its own dump");
  return absl::OkStatus();
}

absl::Status read_safetensors_header(const uint8_t* data, size_t size) {
  const auto header = hf::parse_safetensors_header(text(data, size), static_cast<int64_t>(size), kSource);
  if (!header.ok()) {
    return header.status();
  }
  for (const auto& [name, tensor] : header->tensors) {
    const bool inside = tensor.begin >= 0 && tensor.end >= tensor.begin &&
        header->data_begin + tensor.end <= static_cast<int64_t>(size) && tensor.numel() >= 0;
    TORCH_CHECK(inside, "a tensor that was accepted lies outside of its file");
  }
  return absl::OkStatus();
}

absl::Status read_token_shard(const uint8_t* input, size_t size) {
  // Hashes stop nearly every change; where they are made to fit, what stands behind them is reached.
  std::vector<uint8_t> bytes(input, input + size);
  if (size >= sizeof(data::ShardHeader) && size % 2 == 1) { // the corpus' shard has an odd size
    data::ShardHeader header;
    std::memcpy(&header, input, sizeof(header));
    header.file_bytes = size;
    const base::Digest payload = base::sha256(input + sizeof(header), size - sizeof(header));
    std::memcpy(header.payload_hash, payload.data(), payload.size());
    const base::Digest hash = data::shard_header_hash(header);
    std::memcpy(header.header_hash, hash.data(), hash.size());
    std::memcpy(bytes.data(), &header, sizeof(header));
  }
  const auto shard = data::Shard::open(file_with(bytes.data(), bytes.size()));
  if (!shard.ok()) {
    return shard.status();
  }
  for (int64_t document = 0; document < shard->documents(); ++document) {
    std::vector<int64_t> tokens(static_cast<size_t>(shard->document_length(document)));
    shard->read_tokens(shard->document_begin(document), absl::MakeSpan(tokens)).IgnoreError();
    for (size_t i = 0; i < tokens.size(); ++i) {
      (void)shard->in_loss(shard->document_begin(document) + static_cast<int64_t>(i));
    }
    if (shard->teacher_length(document) > 0) {
      data::TeacherText texts;
      for (const int64_t limit : {2, 5, 1000}) {
        const data::TextLengths lengths = data::fit_texts(*shard, document, limit, limit + 1);
        TORCH_CHECK(
            lengths.tokens <= limit && lengths.teacher_tokens <= limit + 1 &&
                (lengths.tokens == 0) == (lengths.teacher_tokens == 0),
            "texts that are longer than their limits");
        if (lengths.tokens > 0) {
          data::read_texts(*shard, document, lengths, texts).IgnoreError();
        }
      }
    }
  }
  if (absl::Status status = shard->verify(); !status.ok()) {
    return status;
  }
  const std::string path = shard->path();
  TORCH_CHECK(data::describe_shard(path).ok(), "a shard that was accepted cannot be described");
  using data::PackingMode;
  if (shard->has_teacher_stream()) {
    RETURN_IF_ERROR(read_samples(path, PackingMode::kPack, PackingMode::kPack, /*teacher_stream=*/true));
  }
  RETURN_IF_ERROR(read_samples(path, PackingMode::kPack, PackingMode::kConcat));
  return read_samples(path, PackingMode::kConcat, PackingMode::kPack);
}

absl::Status read_checkpoint_index(const uint8_t* data, size_t size) {
  const auto index = checkpoint::parse_index(text(data, size), kSource);
  if (!index.ok()) {
    return index.status();
  }
  for (const checkpoint::ShardFile& file : index->files) {
    TORCH_CHECK(file.name.find('/') == std::string::npos && file.name != "..", "a file outside of the folder");
  }
  TORCH_CHECK(checkpoint::parse_index(checkpoint::to_json(*index), kSource).ok(), "an index does not read back");
  return absl::OkStatus();
}

absl::Status read_tokenizer_json(const uint8_t* data, size_t size) {
  const auto tokenizer = data::read_tokenizer(file_with(data, size));
  if (tokenizer.ok()) {
    (void)tokenizer->hash();
    if (const auto text = data::TokenText::make(*tokenizer); text.ok()) {
      (void)text->decode({tokenizer->tokens.front().first, -1, tokenizer->tokens.back().first});
    }
    return data::map_vocabularies(*tokenizer, *tokenizer).status();
  }
  return tokenizer.status();
}

absl::Status read_model_config(const uint8_t* data, size_t size) {
  const auto config = hf::parse_model_config(std::string(text(data, size)), kSource);
  if (config.ok() && config->num_layers() <= 1000) {
    (void)models::parameter_count(models::unit_layouts(*config));
  }
  return config.status();
}

absl::Status read_weight_map(const uint8_t* data, size_t size) {
  const auto files = hf::parse_weight_map(text(data, size), kSource);
  if (!files.ok()) {
    return files.status();
  }
  for (const auto& [tensor, file] : *files) {
    const std::filesystem::path path("folder/" + file);
    TORCH_CHECK(
        path.lexically_normal().parent_path() == "folder" && path.filename() == file, "a file outside of the folder");
  }
  return absl::OkStatus();
}

absl::Status read_model_checksums(const uint8_t* data, size_t size) {
  const auto sums = hf::parse_checksums(text(data, size), kSource);
  if (!sums.ok()) {
    return sums.status();
  }
  for (const auto& [file, sum] : *sums) {
    const std::filesystem::path path = std::filesystem::path("folder") / file;
    TORCH_CHECK(
        path.lexically_normal() == path && path.string().starts_with("folder/"), "a file outside of the folder");
  }
  const auto again = hf::parse_checksums(hf::checksums_text(*sums), kSource);
  TORCH_CHECK(again.ok() && *again == *sums, "checksums do not read back");
  return absl::OkStatus();
}

// What a resumed run and a replay do with metrics.jsonl and events.jsonl.
absl::Status read_metrics_jsonl(const uint8_t* data, size_t size) {
  constexpr int64_t kLastStep = 5, kLastEvaluation = 3;
  file_with(data, size, "metrics.jsonl");
  file_with(data, size, "events.jsonl");
  const std::string& folder = own_folder();
  const auto visit = [](const trainer::RecordedMeans& means) { TORCH_CHECK(means.valid_tokens >= 0); };
  const auto read = trainer::for_each_recorded_means(folder, {kLastStep, kLastEvaluation}, visit);
  TORCH_CHECK(read.ok(), "means cannot be read: ", read);
  const auto compared = trainer::compare_recorded_steps(folder, folder, kLastStep);
  TORCH_CHECK(!compared.ok() || absl::StrContains(*compared, "bit for bit"), "a step differs from itself");
  const auto events = trainer::RunEvents::open(folder, {kLastStep, kLastEvaluation}, /*spike_sigmas=*/6);
  const auto metrics = metrics::JsonLines::open(folder + "/metrics.jsonl", {kLastStep, kLastEvaluation});
  TORCH_CHECK(events.ok() && metrics.ok(), "a run folder cannot be opened: ", events.status(), metrics.status());
  return metrics::for_each_record(
      folder + "/metrics.jsonl", [](const std::string&, const nlohmann::ordered_json& record) {
        const int64_t last = record.contains("eval") ? kLastEvaluation : kLastStep;
        TORCH_CHECK(metrics::record_step(record).value_or(0) <= last, "a later step was kept");
      });
}

// What a resumed run does with the event files of its earlier parts.
absl::Status read_event_file(const uint8_t* data, size_t size) {
  (void)metrics::step_of_text(text(data, size)); // without a checksum, which few changes would pass
  return metrics::for_each_event(file_with(data, size), [](std::string_view event) {
    (void)metrics::step_of_text(event);
    TORCH_CHECK(metrics::event_record(event).size() == event.size() + 16, "a record of another size");
  });
}

absl::Status read_machine_json(const uint8_t* data, size_t size) {
  const auto machine = plan::read_machine(file_with(data, size));
  if (machine.ok()) {
    TORCH_CHECK(machine->memory_gib > 0 && machine->memory_gib * (1 << 30) < 9e18, "memory that is no number of bytes");
  }
  return machine.status();
}

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"config_yaml", read_config_yaml},     {"safetensors_header", read_safetensors_header},
      {"weight_map", read_weight_map},       {"model_checksums", read_model_checksums},
      {"token_shard", read_token_shard},     {"checkpoint_index", read_checkpoint_index},
      {"metrics_jsonl", read_metrics_jsonl}, {"tokenizer_json", read_tokenizer_json},
      {"model_config", read_model_config},   {"machine_json", read_machine_json},
      {"event_file", read_event_file},       {"cache_manifest", read_cache_manifest},
      {"cache_part", read_cache_part},       {"cache_rows", read_cache_rows}};
  return all;
}

} // namespace distill::fuzz
