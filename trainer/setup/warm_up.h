#pragma once

#include "trainer/sharding/mesh.h"
#include "trainer/step/environment.h"

// Libraries and communicators take device memory when they are first used. These functions use them, so that what they
// take can be measured before a run's memory is planned. They do nothing on the CPU, and leave no tensors behind.
namespace distill::trainer {

// Multiplies matrices and computes attention in the dtypes of both models.
void load_libraries(const Environment& environment);

// Runs the collectives of a step on each of the mesh's communicators, with buffers as large as a block's. All ranks
// call it together.
void open_communicators(const sharding::Mesh& mesh, at::Device device);

} // namespace distill::trainer
