#pragma once

#include <string>

namespace distill::launch {

// Must be called once before thread_stacks(): loads the unwinder and the symbolizer, so that the signal handler which
// walks a stack allocates no memory.
void prepare_thread_stacks();

// The stacks of all threads of this process, the calling one included. For each thread: its name, its state, the kernel
// function it waits in, and a line for each frame, or a note that the thread did not answer in time because it is in
// the kernel or blocks signals. Not thread-safe.
std::string thread_stacks();

} // namespace distill::launch
