#include "trainer/tools/capture_plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/shard.h"
#include "trainer/device/device_info.h"
#include "trainer/plan/capture_memory.h"
#include "trainer/plan/memory_limits.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/read_model.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/index.h"
#include "trainer/teacher_cache/row_places.h"

namespace distill::trainer {
namespace {

std::string gigabytes(int64_t bytes) {
  return absl::StrFormat("%.3g GB", 1e-9 * static_cast<double>(bytes));
}

// Counts the tokens of a document's stretch that may have a row. `followed`: the last one may have one too, the
// first token of the next document.
int64_t count_rows(const data::Stretch& stretch, bool followed) {
  const data::Shard& shard = *stretch.shard;
  if (stretch.teacher_tokens > 0) {
    return static_cast<int64_t>(teacher_cache::own_text_rows(shard, stretch.document, stretch.teacher_tokens).size());
  }
  const int64_t begin = shard.document_begin(stretch.document) + stretch.begin;
  const int64_t last = shard.document_begin(stretch.document + 1) - 1;
  const int64_t end = std::min(begin + stretch.tokens, last);
  int64_t rows = followed && begin + stretch.tokens > last ? 1 : 0;
  if (!shard.has_loss_mask() && shard.left_out().empty()) {
    return rows + std::max<int64_t>(0, end - begin);
  }
  for (int64_t token = begin; token < end; ++token) {
    rows += shard.has_target(token + 1) ? 1 : 0;
  }
  return rows;
}

// Divides the data into the files of the cache, and counts their rows and bytes.
void divide(
    const config::Config& config, const Environment& environment, const models::ModelConfig& teacher,
    absl::Span<const std::shared_ptr<data::Dataset>> data, CapturePlan& plan) {
  teacher_cache::Manifest& manifest = plan.manifest;
  manifest.micro_batch_size = config.train.micro_batch_size;
  const int64_t micro = config.train.micro_batch_size, micro_tokens = micro * config.data.seq_len;
  manifest.part_samples = (config.cache.part_tokens + micro_tokens - 1) / micro_tokens * micro;
  int64_t stretches = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    for (int64_t first = 0; first < data[i]->num_samples(); first += micro) {
      if (first % manifest.part_samples == 0) {
        plan.parts.push_back({static_cast<int64_t>(plan.parts.size()), static_cast<int64_t>(i), {}});
      }
      plan.parts.back().micro_batches.push_back({first, std::min(micro, data[i]->num_samples() - first)});
    }
    data[i]->for_each_stretch([&](const data::Stretch& stretch) {
      ++stretches;
      plan.rows += count_rows(stretch, manifest.concat());
    });
  }
  manifest.parts = static_cast<int64_t>(plan.parts.size());
  const int64_t head = manifest.rows.is_sparse() ? 0
                                                 : static_cast<int64_t>(c10::elementSize(environment.teacher_dtype)) *
          (manifest.vocab_size + 1) * teacher.hidden_size;
  plan.bytes = plan.rows * manifest.rows.row_bytes() + head +
      stretches * static_cast<int64_t>(teacher_cache::stretch_bytes(manifest.part_version())) +
      manifest.parts * static_cast<int64_t>(sizeof(teacher_cache::PartHead) + sizeof(teacher_cache::PartFoot));
}

absl::Status plan_memory(
    const config::Config& config, const TeacherSpec& teacher, const plan::Target& target, bool teacher_stream,
    const plan::Machine& machine, int64_t device_bytes, CapturePlan& plan) {
  const int64_t others = target.environment.outside ? target.environment.outside->others : 0;
  plan.device_bytes = plan::usable_bytes(config.memory, device_bytes - others);
  ASSIGN_OR_RETURN(
      plan.memory,
      plan::predict_capture(config, teacher, plan.manifest.rows, target, teacher_stream, machine, plan.device_bytes));
  plan.overflows = plan::overflows_of(plan.memory, {.device = plan.device_bytes});
  return absl::OkStatus();
}

// A folder without a manifest has at most what a capture makes before it.
absl::Status check_no_other_files(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with('.') && name != teacher_cache::kHeadFolder && !name.ends_with(".partial")) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "teacher.cache: expected a cache, or a folder that is empty or not there yet, found %s with %s and without %s",
          folder, name, teacher_cache::kManifestFile));
    }
  }
  return absl::OkStatus();
}

} // namespace

config::Config capture_config(config::Config config, int64_t world_size) {
  config.teacher.source = config::TeacherSource::kModel;
  config.run.dir = config.teacher.cache;
  config.parallel.gather = config::Gather::kNccl;
  config.train.global_batch_size = config.train.micro_batch_size * world_size;
  return config;
}

absl::StatusOr<CapturePlan> plan_capture(
    const config::Config& config, const Environment& environment, const CaptureInputs& inputs, int64_t world_size,
    int64_t ranks_on_host) {
  CapturePlan plan;
  const models::ModelConfig& teacher = inputs.teacher.model().config;
  ASSIGN_OR_RETURN(plan.manifest, make_manifest(config, environment, inputs.teacher, inputs.data));
  divide(config, environment, teacher, inputs.data, plan);
  ASSIGN_OR_RETURN(
      const plan::Machine machine,
      plan::choose_machine(config, environment.device.is_cuda(), device::device_info(environment.device).name));
  RETURN_IF_ERROR(plan_memory(
      config, inputs.teacher, {environment, world_size, ranks_on_host}, plan.manifest.teacher_seq_len > 0, machine,
      device_bytes_of_rank(environment, ranks_on_host), plan));
  if (config.memory.on_overflow == config::OnOverflow::kRefuse) {
    RETURN_IF_ERROR(plan.check_fits());
  }
  return plan;
}

absl::StatusOr<std::optional<CapturePlan>> capture_on_paper(
    const config::Config& config, int64_t world_size, int64_t ranks_per_node) {
  if (config.teacher.cache.empty() || config.teacher.path.empty()) {
    return std::optional<CapturePlan>();
  }
  const config::Config own = capture_config(config, world_size);
  ASSIGN_OR_RETURN(const RunTokenizers tokenizers, read_tokenizers(own));
  ASSIGN_OR_RETURN(const TeacherSpec spec, read_teacher(own, /*notes=*/nullptr, &tokenizers));
  const models::ModelConfig& teacher = spec.model().config;
  ASSIGN_OR_RETURN(const PaperDevice paper, device_on_paper(own));
  const Environment& environment = paper.environment;
  CapturePlan plan;
  ASSIGN_OR_RETURN(plan.manifest.rows, row_format(own, environment, spec));
  plan.manifest.packing = own.data.packing;
  plan.manifest.vocab_size = teacher.vocab_size;
  const bool own_tokens = spec.vocabulary().aligned;
  if (own_tokens) {
    if (plan.manifest.rows.is_sparse()) {
      return std::optional<CapturePlan>(); // a capture is refused
    }
    plan.manifest.own_tokenizer = tokenizers.teacher->hash();
    plan.manifest.vocab_size = spec.vocabulary().folder_rows;
  }
  std::vector<std::string> paths;
  for (const std::vector<config::DataSet>* sets : {&own.data.train, &own.data.eval}) {
    for (const config::DataSet& set : *sets) {
      paths.push_back(set.path);
    }
  }
  const bool has_data =
      std::all_of(paths.begin(), paths.end(), [](const std::string& path) { return data::is_token_data(path); });
  bool teacher_stream = own.data.teacher_seq_len > 0;
  if (has_data) {
    data::TokenLimits limits;
    limits.documents.rows = limits.teacher_texts.rows = own_tokens ? 0 : teacher.vocab_size;
    ASSIGN_OR_RETURN(
        const auto data,
        open_capture_data(
            own, /*tokenizers=*/{}, limits, /*pin_memory=*/false, tokenizers.alignment_of(spec.vocabulary())));
    divide(own, environment, teacher, data, plan);
    teacher_stream = std::any_of(data.begin(), data.end(), [](const auto& set) { return set->teacher_seq_len() > 0; });
  }
  RETURN_IF_ERROR(plan_memory(
      own, spec, {environment, world_size, ranks_per_node}, teacher_stream, paper.machine,
      static_cast<int64_t>(paper.memory_bytes), plan));
  return std::optional(std::move(plan));
}

std::vector<std::string> CapturePlan::lines(const std::string& folder) const {
  const int64_t width = manifest.rows.row_bytes();
  const std::string row = describe(manifest.rows);
  std::vector<std::string> lines;
  if (parts.empty()) {
    lines.push_back(absl::StrFormat("cache: %s, %d bytes for each token with a target (%s)", folder, width, row));
  } else {
    lines.push_back(absl::StrFormat(
        "cache: %s, %d parts, %d tokens with a target%s of %d bytes each (%s), %s", folder, parts.size(), rows,
        manifest.own_tokenizer ? ", in the teacher's own tokens," : "", width, row, gigabytes(bytes)));
  }
  for (std::string& line : plan::memory_lines(memory, {.device = device_bytes})) {
    lines.push_back(std::move(line));
  }
  return lines;
}

absl::Status CapturePlan::check_fits() const {
  return overflows.empty()
      ? absl::OkStatus()
      : absl::OutOfRangeError(absl::StrCat(
            "the memory plan does not fit: ", absl::StrJoin(overflows, "; "),
            "; smaller: train.micro_batch_size, loss.memory_cap_mb for the kinds topk and sampled, "
            "teacher.dtype: float8, or more ranks with parallel.shard_teacher; "
            "memory.on_overflow=warn tries anyway"));
}

std::string CapturePlan::json(const std::string& folder) const {
  nlohmann::ordered_json json{
      {"folder", folder},
      {"bytes_per_token", manifest.rows.row_bytes()},
      {"peak", memory.peak()},
      {"device", memory.device_bytes()},
      {"device_available", device_bytes},
      {"host_rows", memory.host_teacher},
      {"fits", overflows.empty()}};
  if (!parts.empty()) {
    json.update({{"parts", parts.size()}, {"tokens", rows}, {"bytes", bytes}});
  }
  return json.dump(1);
}

absl::StatusOr<std::optional<teacher_cache::Manifest>> earlier_capture(
    const std::string& folder, const teacher_cache::Manifest& manifest) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return std::optional<teacher_cache::Manifest>();
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> parts, teacher_cache::complete_parts(folder));
  const auto found = teacher_cache::read_manifest(folder);
  if (absl::IsNotFound(found.status()) && !parts.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: expected %s next to the parts of a cache, found %d parts without it, the first one %s; remove them, or "
        "name another teacher.cache",
        folder, teacher_cache::kManifestFile, parts.size(), teacher_cache::part_path(folder, parts.front())));
  }
  if (absl::IsNotFound(found.status())) {
    RETURN_IF_ERROR(check_no_other_files(folder));
    return std::optional<teacher_cache::Manifest>();
  }
  RETURN_IF_ERROR(found.status());
  RETURN_IF_ERROR(teacher_cache::begin_cache(folder, manifest));
  base::ProblemList problems;
  for (const int64_t part : parts) {
    problems.add(teacher_cache::read_part(folder, part, *found).status());
  }
  if (!problems.empty()) {
    return absl::DataLossError(absl::StrCat(
        problems.text(), "\nremove the file, or ", problems.size(),
        " files, and `distill capture` computes them again"));
  }
  return std::optional(*found);
}

absl::Status check_space(const CapturePlan& plan, const std::string& folder, int64_t found) {
  return check_cache_space(folder, std::max<int64_t>(0, plan.bytes - found));
}

} // namespace distill::trainer
