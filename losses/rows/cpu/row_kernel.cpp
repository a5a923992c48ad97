#include "losses/rows/cpu/row_kernel.h"

#include <ATen/Parallel.h>

namespace distill::losses {

namespace {

using RowsRange = void (*)(const RowArgs&, int64_t, int64_t, void*);

RowsRange best_for_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    return avx512::rows_range;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::rows_range;
  }
#endif
  return portable::rows_range;
}

} // namespace

void rows_cpu(const RowArgs& args, void* scratch) {
  static const RowsRange rows_range = best_for_this_machine();
  const int64_t thread_bytes = rows_cpu_thread_bytes(args.vocab, args.logits_type);
  at::parallel_for(0, args.num_rows, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    rows_range(args, begin, end, static_cast<char*>(scratch) + at::get_thread_num() * thread_bytes);
  });
}

int64_t rows_cpu_thread_bytes(int64_t vocab, ElementType logits_type) {
  return 2 * (vocab + 16) * (logits_type == ElementType::kFloat64 ? 8 : 4);
}

int64_t rows_cpu_scratch_bytes(int64_t num_rows, int64_t vocab, ElementType logits_type) {
  return std::min<int64_t>(at::get_num_threads(), num_rows) * rows_cpu_thread_bytes(vocab, logits_type);
}

} // namespace distill::losses
