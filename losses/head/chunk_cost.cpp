#include "losses/head/chunk_cost.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace distill::losses {

namespace {

// The times are means over five shapes on an H200 (docs/loss_head_notes.md), by losses/products/fp32_product.h. Logits
// products have good and bad sizes: 384 rows are fast, 448 are not, and within the head 640, 1280 and 1536 are not.
constexpr std::array<MeasuredRows, 9> kLogitsProduct{{
    {128, 1.62},
    {192, 1.27},
    {256, 1.08},
    {320, 1.07},
    {384, 1.02},
    {512, 1.04},
    {1024, 1.06},
    {2048, 1.02},
    {4096, 1.0},
}};
// The logits products of this many tokens take as long as a chunk costs besides them: launches, and the row kernel's
// first and last rows, which leave multiprocessors idle. The number is from the head's own times under two caps.
constexpr double kTokensPerChunk = 32;
constexpr std::array<MeasuredRows, 10> kWeightGradientProduct{{
    {256, 4.3},
    {384, 2.86},
    {512, 2.2},
    {768, 1.56},
    {1024, 1.26},
    {1280, 1.11},
    {1536, 1.08},
    {2048, 1.05},
    {3072, 1.02},
    {4096, 1.0},
}};

// Interpolates between the measured numbers of rows. Below them a product takes as long as with the fewest rows, since
// it has to read and write the weights all the same.
double relative_time(std::span<const MeasuredRows> measured, int64_t rows) {
  const auto x = static_cast<double>(std::max<int64_t>(rows, 1));
  if (rows <= measured.front().rows) {
    return measured.front().time * static_cast<double>(measured.front().rows) / x;
  }
  for (size_t k = 1; k < measured.size(); ++k) {
    const MeasuredRows& low = measured[k - 1];
    const MeasuredRows& high = measured[k];
    if (rows <= high.rows) {
      const double share = (x - static_cast<double>(low.rows)) / static_cast<double>(high.rows - low.rows);
      return low.time + share * (high.time - low.time);
    }
  }
  return measured.back().time;
}

// Returns the cost of the first `tokens` tokens of a group, whose last chunk may be cut.
double group_cost(const HeadShape& shape, std::span<const int64_t> chunks, int64_t tokens) {
  double logits = 0;
  int64_t left = tokens;
  for (size_t k = 0; left > 0; ++k) {
    const int64_t rows = std::min(chunks[k], left);
    logits += chunk_cost(rows);
    left -= rows;
  }
  const double cost = logits * static_cast<double>(shape.student_hidden + shape.teacher_hidden);
  return shape.needs_grad
      ? cost + static_cast<double>(tokens * shape.student_hidden) * relative_time(kWeightGradientProduct, tokens)
      : cost;
}

} // namespace

std::span<const MeasuredRows> measured_logits_products() {
  return kLogitsProduct;
}

double chunk_cost(int64_t rows) {
  return static_cast<double>(rows) * relative_time(kLogitsProduct, rows) + kTokensPerChunk;
}

double relative_cost(const HeadShape& shape, std::span<const int64_t> chunks) {
  const int64_t group = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
  const int64_t tokens = std::max<int64_t>(shape.tokens, 1);
  const int64_t rest = tokens % group;
  const int64_t whole = tokens / group;
  const double full = whole > 0 ? static_cast<double>(whole) * group_cost(shape, chunks, group) : 0.0;
  return (full + group_cost(shape, chunks, rest)) / static_cast<double>(tokens);
}

} // namespace distill::losses
