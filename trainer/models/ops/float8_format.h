#pragma once

// The numbers of the float8 format (float8.h), for the host and for kernels.
namespace distill::models {

inline constexpr float kFloat8Max = 448; // the largest value of e4m3
inline constexpr float kFloat8SmallestScale = 1e-30F; // of a row of zeros, for example
// The smallest scale that is a power of two: that of a weight's row whose values are all below 4e-4. Such a scale also
// multiplies the row's gradient before it is rounded (float8.h), of which nothing would be left at 1e-30; and values
// down to 1.5e-8 still have all bits of their mantissa.
inline constexpr float kFloat8SmallestPower = 0x1p-20F;

} // namespace distill::models
