#include "trainer/checkpoint/run_state.h"

#include <ATen/Context.h>

#include "data/base/status_macros.h"

namespace distill::checkpoint {
namespace {

constexpr const char* kStepCount = "step_count";
constexpr const char* kHostGenerator = "rng.cpu";
constexpr const char* kDeviceGenerator = "rng.device";

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

absl::Status read_generator(StateReader& reader, int64_t file, const char* name, at::Device device) {
  ASSIGN_OR_RETURN(const at::Tensor state, reader.read_tensor(file, name));
  if (state.defined()) { // a run on a CPU has not saved the state of a GPU's generator
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    try {
      generator.set_state(state);
    } catch (const c10::Error& error) { // only ATen can tell whether a state is valid
      return absl::DataLossError(absl::StrCat(
          reader.file_path(file), ": tensor ", name,
          ": not a state of a random generator: ", error.what_without_backtrace()));
    }
  }
  return absl::OkStatus();
}

// The three flat tensors of a unit, in the order of kUnitTensors.
std::array<at::Tensor, 3> unit_tensors(sharding::ModelShards& model, optim::AdamW& optimizer, int64_t unit) {
  return {model.unit(unit).master, optimizer.moments(unit).exp_avg, optimizer.moments(unit).exp_avg_sq};
}

} // namespace

std::vector<NamedTensor> state_tensors(sharding::ModelShards& model, optim::AdamW& optimizer) {
  std::vector<NamedTensor> tensors;
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    if (!model.has(unit)) {
      continue;
    }
    const auto flat = unit_tensors(model, optimizer, unit);
    for (size_t i = 0; i < flat.size(); ++i) {
      tensors.push_back({tensor_name(unit, kUnitTensors[i]), flat[i]});
    }
  }
  tensors.push_back({kStepCount, optimizer.step_count()});
  tensors.push_back({kHostGenerator, generator_state(at::kCPU)});
  if (!model.options().device.is_cpu()) {
    tensors.push_back({kDeviceGenerator, generator_state(model.options().device)});
  }
  return tensors;
}

int64_t state_bytes(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors) {
    bytes += static_cast<int64_t>(named.tensor.nbytes());
  }
  return bytes;
}

absl::Status read_state(
    StateReader& reader, const Index& index, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh) {
  const int64_t own_file = mesh.shard_rank % static_cast<int64_t>(index.files.size());
  if (mesh.replicate_rank == 0) {
    for (int64_t unit = 0; unit < model.num_units(); ++unit) {
      const auto flat = unit_tensors(model, optimizer, unit);
      for (size_t i = 0; i < flat.size(); ++i) {
        const int64_t begin = model.unit(unit).shard.begin;
        RETURN_IF_ERROR(reader.read(unit, kUnitTensors[i], begin, flat[i]));
      }
    }
    ASSIGN_OR_RETURN(const at::Tensor step_count, reader.read_tensor(own_file, kStepCount));
    if (!step_count.defined() || step_count.numel() != 1) {
      return absl::DataLossError(absl::StrCat(
          index.files[static_cast<size_t>(own_file)].name, ": tensor ", kStepCount, ": expected one element"));
    }
    optimizer.step_count().copy_(step_count.view({1}));
  }
  RETURN_IF_ERROR(read_generator(reader, own_file, kHostGenerator, at::kCPU));
  const at::Device device = model.options().device;
  return device.is_cpu() ? absl::OkStatus() : read_generator(reader, own_file, kDeviceGenerator, device);
}

void share_with_replicas(sharding::ModelShards& model, optim::AdamW& optimizer, const sharding::Mesh& mesh) {
  if (mesh.replicate == nullptr) {
    return;
  }
  const auto share = [&](const at::Tensor& tensor) {
    const at::Tensor on_device = tensor.to(model.options().device);
    mesh.replicate->broadcast(on_device, /*root=*/0);
    if (!on_device.is_same(tensor)) { // the state is in host memory
      at::Tensor(tensor).copy_(on_device);
    }
  };
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    for (const at::Tensor& tensor : unit_tensors(model, optimizer, unit)) {
      if (model.has(unit)) {
        share(tensor);
      }
    }
  }
  share(optimizer.step_count());
}

} // namespace distill::checkpoint
