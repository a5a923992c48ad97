#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "losses/options.h"

// This is the one description of the values that each number of the options may have. validate() reads it, and through
// validate() every operator and the Python package; the trainer makes its keys, their help and their errors of it.
namespace distill::losses {

struct RealRange {
  double min = 0;
  double max = 0;
  bool max_excluded = false;
  bool or_zero = false; // 0 is a value, too, and means off
};

struct IntegerRange {
  int64_t min = 0;
  int64_t max = 0;
};

// The losses are computed in fp32. A temperature or a cap, its inverse and the square of either stay in its range, and
// so does the product with a logit, from kLeast to kMost; beyond, losses and gradients are infinite or NaN.
inline constexpr double kLeast = 1e-10;
inline constexpr double kMost = 1e10;
// 2^26 tokens are more than a call can have; 2^24 MiB are 16 TiB.
inline constexpr int64_t kMostTokens = int64_t{1} << 26;
inline constexpr int64_t kMostMiB = int64_t{1} << 24;

struct RealOption {
  const char* key;
  double LossOptions::*value;
  RealRange range;
};

struct IntegerOption {
  const char* key;
  int64_t ChunkOptions::*value;
  IntegerRange range;
};

inline constexpr std::array kRealOptions{
    RealOption{"beta", &LossOptions::beta, {.min = 0, .max = 1}},
    RealOption{"skew_alpha", &LossOptions::skew_alpha, {.min = 0, .max = 1, .max_excluded = true}},
    RealOption{"temperature", &LossOptions::temperature, {.min = kLeast, .max = kMost}},
    RealOption{"hard_weight", &LossOptions::hard_weight, {.min = 0, .max = kMost}},
    RealOption{"soft_weight", &LossOptions::soft_weight, {.min = 0, .max = kMost}},
    RealOption{"label_smoothing", &LossOptions::label_smoothing, {.min = 0, .max = 1, .max_excluded = true}},
    RealOption{"z_loss", &LossOptions::z_loss, {.min = 0, .max = kMost}},
    RealOption{"student_softcap", &LossOptions::student_softcap, {.min = kLeast, .max = kMost, .or_zero = true}},
    RealOption{"teacher_softcap", &LossOptions::teacher_softcap, {.min = kLeast, .max = kMost, .or_zero = true}},
};

inline constexpr std::array kIntegerOptions{
    IntegerOption{"chunk_size", &ChunkOptions::chunk_size, {0, kMostTokens}},
    IntegerOption{"memory_cap_mb", &ChunkOptions::memory_cap_mb, {1, kMostMiB}},
    IntegerOption{"min_chunk_size", &ChunkOptions::min_chunk_size, {1, kMostTokens}},
};

consteval RealRange range_of(double LossOptions::*value) {
  for (const RealOption& option : kRealOptions) {
    if (option.value == value) {
      return option.range;
    }
  }
  throw "an option without a range";
}

consteval IntegerRange range_of(int64_t ChunkOptions::*value) {
  for (const IntegerOption& option : kIntegerOptions) {
    if (option.value == value) {
      return option.range;
    }
  }
  throw "an option without a range";
}

// Return false for NaN.
constexpr bool contains(const RealRange& range, double value) {
  return (range.or_zero && value == 0) ||
      (value >= range.min && value <= range.max && !(range.max_excluded && value == range.max));
}
constexpr bool contains(const IntegerRange& range, int64_t value) {
  return value >= range.min && value <= range.max;
}

// Return a phrase such as "a number in [0, 1)" or "0 (off), or a number above 0, in [1e-10, 1e+10]".
std::string expectation(const RealRange& range);
std::string expectation(const IntegerRange& range);

} // namespace distill::losses
