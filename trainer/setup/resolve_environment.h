#pragma once

#include <absl/status/statusor.h>

#include "trainer/config/config.h"
#include "trainer/step/environment.h"

namespace distill::trainer {

// The device and the dtypes of the models on it. The device need not exist here.
Environment environment_on(const config::Config& config, at::Device device);

// `local_gpu` is an index into the visible GPUs. Error if the config asks for a GPU and none is visible.
absl::StatusOr<Environment> resolve_environment(const config::Config& config, int64_t local_gpu = 0);

// Sets the global switches of libtorch that the run needs: current device, allocator, seed, deterministic algorithms.
// On a GPU this is the first use of the device, and `environment` gets the allocator that can be had.
void configure_libtorch(const config::TrainSection& train, Environment& environment);

} // namespace distill::trainer
