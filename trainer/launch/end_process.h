#pragma once

namespace distill::launch {

// Ends the process with this exit code, without the destructors of static objects: libtorch takes 0.15 s for its own,
// half of what a short command takes, and no object of ours is static and has more to do than to free memory. Flushes
// what C streams hold. Where a GPU driver is loaded or a sanitizer is built in, the process ends as usual, since
// profilers and the check for leaks do their work then.
[[noreturn]] void end_process(int code);

} // namespace distill::launch
