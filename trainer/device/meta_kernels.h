#pragma once

namespace distill::device {

// Registers meta kernels for a few ops of the trainer for which libtorch has none in C++. Once for a process; later
// calls do nothing.
void register_meta_kernels();

} // namespace distill::device
