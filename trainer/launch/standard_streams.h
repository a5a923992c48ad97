#pragma once

#include <absl/status/status.h>

namespace distill::launch {

// The first call of main, before any file is opened. Descriptors 0 to 2 that the caller has closed are opened at
// /dev/null: the next file would get their numbers, and progress lines would be written into it. SIGPIPE and SIGXFSZ no
// longer end the process, so that a pipe without a reader or a file at its size limit is an error of the write that
// failed (EPIPE, EFBIG). Both get a handler that does nothing, since an ignored signal would stay ignored in every
// program that this process starts; the ranks are this program and do the same for themselves.
void prepare_standard_streams();

// Writes what standard output still buffers. An error: something that was printed since the start of the process could
// not be written, or standard output was closed when prepare_standard_streams() was called. Cancelled: its reader has
// gone, as with `distill --help | head`, which needs no message.
absl::Status flush_standard_output();

} // namespace distill::launch
