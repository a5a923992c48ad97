#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::onpolicy {

// The student as the engine reads it.
struct StudentWeights {
  std::string folder; // a Hugging Face folder in the dtype that the student computes in: bfloat16, or float32
  std::string version; // "step-40-9f3ab2c4d5e6f708": equal versions mean equal weights
  double seconds = 0; // that it took to write them
};

// Where the weights of this run are written: below onpolicy.weights_dir a folder of the run's own, else in the run
// folder.
std::string weights_folder(const config::Config& config);

// Writes the student's weights after `step` steps. All ranks call it together, and one unit at a time is gathered: the
// device holds no second copy of the model. The result is that of rank 0; the other ranks get an empty one.
absl::StatusOr<StudentWeights> write_student_weights(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh, int64_t step);

// Whether the weights of this version are there, whole.
bool is_written(const config::Config& config, const std::string& version);

// Removes them, and where onpolicy.weights_dir is given the run's own folder in it.
void remove_student_weights(const config::Config& config);

} // namespace distill::onpolicy
