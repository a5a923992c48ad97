#include "trainer/optim/adamw_cpu.h"

#include <algorithm>

#include "trainer/optim/adamw_math.h"

namespace distill::optim {
namespace {

using Range = void (*)(const AdamWArgs&, int64_t, int64_t);

Range best_for_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return avx512::adamw_range;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::adamw_range;
  }
#endif
  return portable::adamw_range;
}

} // namespace

void adamw_factors_on_cpu(const AdamWStep& step) {
  *step.factors = factors_of(step);
}

// The threads' shares do not decide any result, so that their number need not be that of at::parallel_for.
void adamw_on_cpu(const AdamWArgs& args, int threads) {
  static const Range range = best_for_this_machine();
  if (args.n == 0 || args.factors->skipped != 0) {
    return;
  }
  constexpr int64_t kGrain = 1 << 14; // elements
  const int64_t parts = (args.n + kGrain - 1) / kGrain;
#pragma omp parallel for schedule(static) num_threads(std::max(1, threads)) if (threads > 1 && parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    range(args, part * kGrain, std::min(args.n, (part + 1) * kGrain));
  }
}

} // namespace distill::optim
