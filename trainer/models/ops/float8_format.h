#pragma once

// The numbers of the float8 format (float8.h), for the host and for kernels.
namespace distill::models {

inline constexpr float kFloat8Max = 448; // the largest value of e4m3
inline constexpr float kFloat8SmallestScale = 1e-30F; // of a row of zeros, for example

} // namespace distill::models
