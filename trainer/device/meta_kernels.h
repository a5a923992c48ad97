#pragma once

namespace distill::device {

// libtorch has no meta kernels in C++ for a few ops that the trainer uses; from here on it has. Once for a process;
// later calls do nothing.
void register_meta_kernels();

} // namespace distill::device
