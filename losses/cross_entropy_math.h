#pragma once

#include "losses/cross_entropy_backward.h"
#include "losses/row_math.h"

// One row of the backward of cross-entropy, for the CPU and for CUDA. T is float or double.
namespace distill::losses {

template <typename T>
struct CrossEntropyRow {
  T lse = 0;
  T q = 0; // factor of the softmax
  T uniform = 0; // taken from every column: label smoothing
  T label = 0; // taken from the label's column
  T softcap = 0;
};

// NaN in every factor where the log-sum-exp is not finite, so that a NaN logit is never hidden.
template <typename T>
DISTILL_ROW_INLINE CrossEntropyRow<T> cross_entropy_row(const LossOptions& o, int64_t vocab, T lse, T scale) {
  CrossEntropyRow<T> row;
  const T weight = static_cast<T>(o.hard_weight) * (scale + (lse - lse));
  row.lse = lse;
  row.q = weight * (T(1) + T(2) * static_cast<T>(o.z_loss) * lse);
  row.uniform = weight * static_cast<T>(o.label_smoothing / static_cast<double>(vocab));
  row.label = weight * static_cast<T>(1 - o.label_smoothing);
  row.softcap = static_cast<T>(o.student_softcap);
  return row;
}

template <bool kSoftcap, typename T>
DISTILL_ROW_INLINE T cross_entropy_gradient(T logit, bool is_label, const CrossEntropyRow<T>& row) {
  const T z = kSoftcap ? softcapped(logit, row.softcap) : logit;
  const T q = row_exp2((z - row.lse) * kLog2E<T>);
  const T gradient = row.q * q - row.uniform - (is_label ? row.label : T(0));
  return kSoftcap ? gradient * softcap_slope(z, row.softcap) : gradient;
}

} // namespace distill::losses
