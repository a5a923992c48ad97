#pragma once

#include <string>

namespace distill::launch {

// To be called once, before thread_stacks(): loads what walking a stack needs, so that nothing is allocated later.
void prepare_thread_stacks();

// The stacks of all threads of this process, the caller's included: name, state, what it waits for in the kernel, and a
// line for each frame. A thread that does not answer within a moment (in the kernel, or with signals blocked) is said
// to. One caller at a time.
std::string thread_stacks();

} // namespace distill::launch
