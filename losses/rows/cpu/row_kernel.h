#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Rows on the CPU, vectorised for the machine's instruction set, threaded over rows.
void rows_cpu(const RowArgs& args);

// Bytes that each row-kernel thread allocates while it runs.
int64_t rows_cpu_thread_bytes(int64_t vocab, ElementType logits_type);

// Rows [begin, end) on this thread, for one instruction set each.
namespace portable {
void rows_range(const RowArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void rows_range(const RowArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void rows_range(const RowArgs& args, int64_t begin, int64_t end);
}

} // namespace distill::losses
