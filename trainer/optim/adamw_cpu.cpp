#include <ATen/Parallel.h>

#include "trainer/optim/adamw_math.h"

namespace distill::optim {

void adamw_on_cpu(const AdamWArgs& args) {
  TORCH_CHECK(args.bf16_moments, "moments in fp32 are updated by at::_fused_adamw_");
  if (args.found_inf != nullptr && *args.found_inf != 0) {
    return;
  }
  constexpr int64_t kGrain = 1 << 14; // elements
  const AdamWFactors f = factors_of(args);
  auto* const exp_avgs = static_cast<uint16_t*>(args.exp_avg);
  auto* const exp_avg_sqs = static_cast<uint16_t*>(args.exp_avg_sq);
  at::parallel_for(0, args.n, kGrain, [&](int64_t begin, int64_t end) {
    uint32_t words[kRoundingGroup];
    for (int64_t i = begin; i < end; ++i) {
      float exp_avg = widen(exp_avgs[i]), exp_avg_sq = widen(exp_avg_sqs[i]);
      const bool decays = f.weight_decay != 0 && i >= args.decay_begin;
      update_element(f, decays, args.gradient[i], args.params[i], exp_avg, exp_avg_sq);
      const int64_t element = args.first + i;
      if (i == begin || element % kRoundingGroup == 0) {
        rounding_words(f.step, args.unit, element / kRoundingGroup, words);
      }
      const uint32_t word = words[element % kRoundingGroup];
      exp_avgs[i] = round_stochastically(exp_avg, word & 0xFFFFU);
      exp_avg_sqs[i] = round_stochastically(exp_avg_sq, word >> 16);
    }
  });
}

} // namespace distill::optim
