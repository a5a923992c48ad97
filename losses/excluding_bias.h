#pragma once

namespace distill::losses {

// A bias of at most this number excludes its column from the distribution. It acts after the softcap, which would limit
// it, so that the column's probability is exactly 0 at T = 1, and at another temperature with a bias T times as far
// from 0. Logits are far smaller. Exact in bf16.
inline constexpr double kExcludingBias = -0x1p20;

} // namespace distill::losses
