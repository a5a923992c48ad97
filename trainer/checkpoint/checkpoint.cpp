#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trainer/checkpoint/durable_file.h"
#include "trainer/models/safetensors.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;
constexpr const char* kMarker = "COMPLETE";
constexpr const char* kFolder = "checkpoints";

std::string rank_file(int64_t rank) {
  return absl::StrFormat("rank-%05d.safetensors", rank);
}

// Every tensor of the state under its name in the file.
std::map<std::string, at::Tensor> state_tensors(sharding::ModelShards& model, optim::AdamW& optimizer) {
  std::map<std::string, at::Tensor> tensors{{"step_count", optimizer.step_count()}};
  for (int64_t i = 0; i < model.num_units(); ++i) {
    const std::string prefix = absl::StrCat("unit.", i, ".");
    tensors[prefix + "master"] = model.unit(i).master;
    tensors[prefix + "exp_avg"] = optimizer.moments(i).exp_avg;
    tensors[prefix + "exp_avg_sq"] = optimizer.moments(i).exp_avg_sq;
  }
  return tensors;
}

Json index_json(const TrainState& state, const RunIdentity& identity, const sharding::ModelShards& model) {
  Json units = Json::array();
  for (int64_t i = 0; i < model.num_units(); ++i) {
    const models::UnitLayout& layout = model.unit(i).layout;
    Json params = Json::array();
    for (const models::ParamLayout& param : layout.params) {
      params.push_back({{"name", param.name}, {"offset", param.offset}, {"shape", param.shape}});
    }
    units.push_back({{"name", layout.name}, {"numel", layout.numel}, {"params", params}});
  }
  return {
      {"format", "distill-checkpoint"},
      {"version", kFormatVersion},
      {"step", state.step},
      {"samples", state.samples},
      {"tokens", state.tokens},
      {"skipped_total", state.skipped_total},
      {"skipped_in_row", state.skipped_in_row},
      {"world_size", model.options().world_size},
      {"model", identity.model},
      {"data", identity.data},
      {"units", units}};
}

// N of "step-N"; nullopt for any other name.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end ? std::optional(step) : std::nullopt;
}

// Complete checkpoints of a run folder by step, ascending.
std::map<int64_t, fs::path> complete_checkpoints(const std::string& run_dir) {
  std::map<int64_t, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(run_dir) / kFolder, error)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && fs::exists(entry.path() / kMarker, error)) {
      found[*step] = entry.path();
    }
  }
  return found;
}

void remove_old(const std::string& run_dir, int64_t keep) {
  auto found = complete_checkpoints(run_dir);
  while (static_cast<int64_t>(found.size()) > std::max<int64_t>(1, keep)) {
    std::error_code ignored; // a folder that cannot be removed costs disk, not the run
    fs::remove(found.begin()->second / kMarker, ignored);
    fs::remove_all(found.begin()->second, ignored);
    found.erase(found.begin());
  }
}

absl::StatusOr<int64_t> integer(const Json& index, const char* key, const std::string& file) {
  const auto it = index.find(key);
  if (it == index.end() || !it->is_number_integer()) {
    return absl::DataLossError(absl::StrCat(file, ": '", key, "' is missing or not an integer"));
  }
  return it->get<int64_t>();
}

// A string member; empty where it is missing or something else.
std::string text(const Json& index, const char* key) {
  const auto it = index.find(key);
  return it != index.end() && it->is_string() ? it->get<std::string>() : "";
}

// Fills every target from the tensor of its name. Nothing is changed unless all of them are there and fit.
absl::Status read_tensors(const std::string& path, const std::map<std::string, at::Tensor>& targets) {
  const auto file = models::SafetensorsFile::open(path);
  if (!file.ok()) {
    return file.status();
  }
  for (const auto& [name, target] : targets) {
    const models::TensorInfo* info = file->find(name);
    if (info == nullptr || info->dtype != "F32" || info->numel() != target.numel()) {
      return absl::DataLossError(absl::StrCat(
          path, ": tensor ", name, ": expected F32 with ", target.numel(), " elements, found ",
          info == nullptr ? "none" : absl::StrCat(info->dtype, " with ", info->numel())));
    }
  }
  for (const auto& [name, target] : targets) {
    if (target.is_cpu()) {
      file->copy_elements(*file->find(name), 0, target);
    } else {
      at::Tensor staged = at::empty(target.sizes(), target.options().device(at::kCPU));
      file->copy_elements(*file->find(name), 0, staged);
      target.copy_(staged);
    }
  }
  return absl::OkStatus();
}

absl::Status check_identity(const std::string& file, const char* what, const Json& index, const std::string& expected) {
  const std::string found = text(index, what);
  if (found == expected) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      file, ": this checkpoint is of another ", what, "\n  checkpoint: ", found, "\n  this run:   ", expected,
      "\n  resume with the configuration it was made with, or start afresh with --overwrite"));
}

} // namespace

absl::StatusOr<std::string> save(
    const std::string& run_dir, const TrainState& state, const RunIdentity& identity, sharding::ModelShards& model,
    optim::AdamW& optimizer, int64_t keep, const sharding::Mesh& mesh) {
  const fs::path final_folder = fs::path(run_dir) / kFolder / absl::StrCat("step-", state.step);
  const fs::path partial = final_folder.string() + ".partial";
  std::error_code error;
  absl::Status status;
  if (mesh.is_main()) {
    fs::remove_all(partial, error);
    fs::create_directories(partial, error);
    if (error) {
      status = absl::InternalError(absl::StrCat(partial.string(), ": cannot create: ", error.message()));
    }
  }
  status = sharding::agree(mesh, status);
  if (status.ok() && mesh.replicate_rank == 0) { // every replica has the same shards
    status = models::write_safetensors(
        (partial / rank_file(model.options().rank)).string(), state_tensors(model, optimizer));
  }
  status = sharding::agree(mesh, status);
  if (status.ok() && mesh.is_main()) {
    status = write_file((partial / "index.json").string(), index_json(state, identity, model).dump(1) + "\n");
    if (status.ok()) {
      status = write_file((partial / kMarker).string(), "");
    }
    if (status.ok()) {
      status = publish_folder(partial.string(), final_folder.string());
    }
  }
  status = sharding::agree(mesh, status);
  if (!status.ok()) {
    if (mesh.is_main()) {
      fs::remove_all(partial, error);
    }
    return status;
  }
  if (mesh.is_main()) {
    remove_old(run_dir, keep);
  }
  return final_folder.string();
}

absl::StatusOr<std::optional<std::string>> newest_complete(const std::string& run_dir) {
  const auto found = complete_checkpoints(run_dir);
  return found.empty() ? std::optional<std::string>() : std::optional(found.rbegin()->second.string());
}

absl::StatusOr<TrainState> load(
    const std::string& folder, const RunIdentity& identity, sharding::ModelShards& model, optim::AdamW& optimizer) {
  const std::string file = (fs::path(folder) / "index.json").string();
  std::ifstream stream(file);
  if (!stream) {
    return absl::NotFoundError(absl::StrCat(file, ": cannot open"));
  }
  const Json index = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || text(index, "format") != "distill-checkpoint") {
    return absl::DataLossError(absl::StrCat(file, ": not the index of a distill checkpoint"));
  }
  TrainState state;
  int64_t version = 0, world_size = 0;
  const std::pair<const char*, int64_t*> fields[] = {
      {"version", &version},
      {"step", &state.step},
      {"samples", &state.samples},
      {"tokens", &state.tokens},
      {"world_size", &world_size},
      {"skipped_total", &state.skipped_total},
      {"skipped_in_row", &state.skipped_in_row}};
  for (const auto& [key, value] : fields) {
    const auto read = integer(index, key, file);
    if (!read.ok()) {
      return read.status();
    }
    *value = *read;
  }
  if (version != kFormatVersion || world_size != model.options().world_size) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: format version %d of %d rank(s); this program reads version %d on %d rank(s)", file, version, world_size,
        kFormatVersion, model.options().world_size));
  }
  if (absl::Status status = check_identity(file, "model", index, identity.model); !status.ok()) {
    return status;
  }
  if (absl::Status status = check_identity(file, "data", index, identity.data); !status.ok()) {
    return status;
  }
  const std::string shards = (fs::path(folder) / rank_file(model.options().rank)).string();
  if (absl::Status status = read_tensors(shards, state_tensors(model, optimizer)); !status.ok()) {
    return status;
  }
  model.refresh_weights();
  return state;
}

} // namespace distill::checkpoint
