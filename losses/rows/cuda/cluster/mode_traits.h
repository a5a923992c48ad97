// These constants follow from a mode of the cluster row kernel.
#pragma once

#include "losses/rows/cuda/cluster/plan.h"
#include "losses/rows/row_math.h"

namespace distill::losses::cluster {

// True where the temperature may be another than 1.
template <Mode kMode>
inline constexpr bool kScales = kMode == Mode::kTempered || kMode == Mode::kCappedTempered || kMode == Mode::kGeneral;

// True where there may be softcaps.
template <Mode kMode>
inline constexpr bool kCaps =
    kMode == Mode::kCapped || kMode == Mode::kCappedTempered || kMode == Mode::kCappedLoss || kMode == Mode::kGeneral;

// True where the base is subtracted from the logits before they are scaled: two sums with different scales need it.
template <Mode kMode>
inline constexpr bool kSubtractsFirst = kScales<kMode>;

// True where log2 q is kept of a column, and not q.
template <Mode kMode>
inline constexpr bool kKeepsLog = kScales<kMode>;

// True where log2(m / q) comes from its series if p and q are close (soft_terms). With the instruction instead, errors
// near the teacher are within twice those of a plain computation in fp32 for JSD at T = 1, and not at other
// temperatures.
template <Divergence kDivergence, Mode kMode>
inline constexpr bool kSeriesNearZero = kScales<kMode> || kDivergence != Divergence::kJsd;

// True where exponentials replace the logits in shared memory (kept_exponentials.cuh), and of the metrics only
// the loss is computed.
template <Mode kMode>
inline constexpr bool kKeepsExponentials = kMode == Mode::kUnitLoss || kMode == Mode::kCappedLoss;

// True where p comes from q and r: a third exponential for each column would limit the kernel's speed. With softcaps,
// where it does not, the check costs registers.
template <Divergence kDivergence, Mode kMode>
inline constexpr bool kPairsFromRatio = kUsesRatio<kDivergence> && !kCaps<kMode>;

} // namespace distill::losses::cluster
