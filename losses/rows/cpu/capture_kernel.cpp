#include "losses/rows/cpu/capture_kernel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "losses/rows/philox.h"

namespace distill::losses {

namespace {

template <typename T>
const T* logits_of(const CaptureRowArgs& args, int64_t row) {
  return static_cast<const T*>(args.logits) + row * args.logits_stride;
}

// Returns whether column a comes before column b: NaN comes before all numbers, so that it is not hidden.
template <typename T>
bool comes_before(const T* logits, int32_t a, int32_t b) {
  const bool a_is_nan = logits[a] != logits[a];
  const bool b_is_nan = logits[b] != logits[b];
  if (a_is_nan != b_is_nan) {
    return a_is_nan;
  }
  if (!a_is_nan && logits[a] != logits[b]) {
    return logits[a] > logits[b];
  }
  return a < b;
}

// A heap holds the K columns that come first so far; the last of them is on top.
template <typename T>
void top_k_of_row(const CaptureRowArgs& args, int64_t row) {
  const T* logits = logits_of<T>(args, row);
  int32_t* ids = args.ids + row * args.ids_stride;
  int32_t* end = ids + args.entries;
  const auto before = [&](int32_t a, int32_t b) { return comes_before(logits, a, b); };
  for (int64_t k = 0; k < args.entries; ++k) {
    ids[k] = static_cast<int32_t>(k);
  }
  std::make_heap(ids, end, before);
  for (auto v = static_cast<int32_t>(args.entries); v < args.vocab; ++v) {
    if (before(v, ids[0])) {
      std::pop_heap(ids, end, before);
      end[-1] = v;
      std::push_heap(ids, end, before);
    }
  }
  std::sort_heap(ids, end, before);
}

// A row is summed over segments of columns.
template <typename T>
struct RowOfDraws {
  const T* logits;
  T max = -std::numeric_limits<T>::infinity();
  SampleScales<T> scales;
  std::vector<double> before; // the sum of draws' masses before each segment
  double draw_sum = 0;
  double p_sum = 0;

  RowOfDraws(const CaptureRowArgs& args, int64_t row)
      : logits(logits_of<T>(args, row)), scales(sample_scales<T>(args)) {
    for (int64_t v = 0; v < args.vocab; ++v) {
      max = row_max(logits[v], max);
    }
    const int64_t columns = segment_columns(args.vocab);
    for (int64_t begin = 0; begin < args.vocab; begin += columns) {
      before.push_back(draw_sum);
      for (int64_t v = begin; v < std::min(begin + columns, args.vocab); ++v) {
        draw_sum += mass(v);
        p_sum += static_cast<double>(row_exp2((logits[v] - max) * scales.p));
      }
    }
  }

  double mass(int64_t v) const {
    return static_cast<double>(row_exp2((logits[v] - max) * scales.draw));
  }

  // Returns the column in which `target`, in [0, draw_sum), falls.
  int64_t column_at(double target, int64_t vocab) const {
    const auto next = std::upper_bound(before.begin() + 1, before.end(), target);
    const int64_t columns = segment_columns(vocab);
    const int64_t begin = (next - before.begin() - 1) * columns;
    double sum = *(next - 1);
    int64_t last = begin;
    for (int64_t v = begin; v < std::min(begin + columns, vocab); ++v) {
      const double here = mass(v);
      sum += here;
      last = here > 0 ? v : last;
      if (sum > target) {
        break;
      }
    }
    return last; // rounding may leave the target beyond the segment: then it is its last column with any probability
  }
};

template <typename T>
void samples_of_row(const CaptureRowArgs& args, int64_t row) {
  const RowOfDraws<T> draws(args, row);
  for (int64_t s = 0; s < args.entries; ++s) {
    const double u = philox_uniform(args.seed, static_cast<uint64_t>(args.keys[row]), static_cast<uint32_t>(s));
    const int64_t id = draws.column_at(u * draws.draw_sum, args.vocab);
    args.ids[row * args.ids_stride + s] = static_cast<int32_t>(id);
    args.weights[row * args.weights_stride + s] =
        sample_weight(draws.logits[id] - draws.max, draws.scales, draws.p_sum, draws.draw_sum, args.entries);
  }
}

template <typename T>
void rows_as(const CaptureRowArgs& args, CaptureStage stage) {
  at::parallel_for(0, args.num_rows, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      stage == CaptureStage::kTopK ? top_k_of_row<T>(args, row) : samples_of_row<T>(args, row);
    }
  });
}

} // namespace

void capture_rows_cpu(const CaptureRowArgs& args, CaptureStage stage) {
  args.logits_type == ElementType::kFloat64 ? rows_as<double>(args, stage) : rows_as<float>(args, stage);
}

} // namespace distill::losses
