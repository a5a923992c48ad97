#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Runs the row kernel on the CPU, vectorised for the machine's instruction set, with the rows spread over threads.
// `scratch`: rows_cpu_scratch_bytes() bytes, aligned for the compute type.
void rows_cpu(const RowArgs& args, void* scratch);

// Returns the bytes of scratch for each thread of the kernel: two numbers of the compute type for each column.
int64_t rows_cpu_thread_bytes(int64_t vocab, ElementType logits_type);
// Returns the bytes of scratch for all threads, of which there are no more than rows.
int64_t rows_cpu_scratch_bytes(int64_t num_rows, int64_t vocab, ElementType logits_type);

// Each computes rows [begin, end) on this thread for one instruction set. `scratch`: rows_cpu_thread_bytes() bytes.
namespace portable {
void rows_range(const RowArgs& args, int64_t begin, int64_t end, void* scratch);
}
namespace avx2 {
void rows_range(const RowArgs& args, int64_t begin, int64_t end, void* scratch);
}
namespace avx512 {
void rows_range(const RowArgs& args, int64_t begin, int64_t end, void* scratch);
}

} // namespace distill::losses
