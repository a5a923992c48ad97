#include "losses/cross_entropy_backward.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include "losses/cross_entropy_math.h"

namespace distill::losses {

namespace {

template <bool kSoftcap, typename T, typename Logit>
void row_backward(const Logit* logits, Logit* gradient, int64_t label, int64_t vocab, const CrossEntropyRow<T>& row) {
#pragma omp simd
  for (int64_t v = 0; v < vocab; ++v) {
    gradient[v] =
        static_cast<Logit>(cross_entropy_gradient<kSoftcap>(static_cast<T>(logits[v]), /*is_label=*/v == label, row));
  }
}

template <typename T, typename Logit>
void backward(const CrossEntropyBackwardArgs& a) {
  at::parallel_for(0, a.num_rows, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      Logit* gradient = static_cast<Logit*>(a.gradient) + r * a.gradient_stride;
      const T scale = static_cast<const T*>(a.scale)[r];
      if (a.targets[r] == kIgnoreIndex || scale == 0) {
        std::fill_n(gradient, a.vocab, Logit(0));
        continue;
      }
      const auto row = cross_entropy_row<T>(a.options, a.vocab, static_cast<const T*>(a.lse)[r], scale);
      const Logit* logits = static_cast<const Logit*>(a.logits) + r * a.logits_stride;
      if (row.softcap > 0) {
        row_backward</*kSoftcap=*/true>(logits, gradient, a.targets[r], a.vocab, row);
      } else {
        row_backward</*kSoftcap=*/false>(logits, gradient, a.targets[r], a.vocab, row);
      }
    }
  });
}

} // namespace

void cross_entropy_backward_cpu(const CrossEntropyBackwardArgs& args) {
  switch (args.type) {
    case ElementType::kFloat32:
      return backward<float, float>(args);
    case ElementType::kBFloat16:
      return backward<float, c10::BFloat16>(args);
    case ElementType::kFloat64:
      return backward<double, double>(args);
  }
}

} // namespace distill::losses
