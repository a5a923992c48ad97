// One block for each row. The row's logits are read three times; the second and third reads mostly hit L2.
#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

template <typename T>
struct BlockPartials {
  SideSums<T> student[kWarps];
  SideSums<T> teacher[kWarps];
  RowSums<T> sums[kWarps];
  int student_best[kWarps];
  int teacher_best[kWarps];
};

// One side's running maximum and sums over this thread's columns.
template <typename T>
__device__ SideSums<T> thread_side_sums(
    const void* row, ElementType type, const void* bias, ElementType bias_type, T softcap, int64_t vocab,
    const RowConstants<T>& c) {
  SideSums<T> out;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const T z = logit_at(row, v, type, bias, bias_type, softcap);
    if (z > out.max) {
      out.sum = scaled_to(out.sum, out.max, z, c.to_log2);
      out.unit_sum = scaled_to(out.unit_sum, out.max, z, kLog2E<T>);
      out.max = z;
    }
    const T base = finite_max(out.max);
    out.sum += row_exp2((z - base) * c.to_log2);
    if (!c.unit_temperature) {
      out.unit_sum += row_exp2((z - base) * kLog2E<T>);
    }
  }
  return out;
}

template <typename T>
__device__ SideStats<T> block_stats(SideSums<T>* partials, const SideSums<T>& mine, const RowConstants<T>& c) {
  const SideSums<T> warp = warp_merge(mine, c.to_log2, c.unit_temperature);
  if (threadIdx.x % kWarp == 0) {
    partials[threadIdx.x / kWarp] = warp;
  }
  __syncthreads();
  SideSums<T> all = partials[0];
  for (int w = 1; w < kWarps; ++w) {
    all = merge(all, partials[w], c.to_log2);
  }
  return side_stats(all, c);
}

// args: see RowArgs; block r takes row r.
template <typename T, bool kTeacher>
__global__ __launch_bounds__(kThreads) void rows_streaming(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<T> c) {
  __shared__ __align__(16) unsigned char storage[sizeof(BlockPartials<T>)];
  auto& shared = *reinterpret_cast<BlockPartials<T>*>(storage);
  const int64_t row = blockIdx.x;
  const int64_t vocab = args.vocab;
  T* out = static_cast<T*>(args.metrics) + row;
  const int64_t target = args.targets == nullptr ? 0 : args.targets[row];
  if (args.targets != nullptr && target == kIgnoreIndex) {
    if (threadIdx.x == 0) {
      zero_metrics(out, args.metrics_stride);
    }
    for (int64_t v = threadIdx.x; args.gradient != nullptr && v < vocab; v += kThreads) {
      store_as(args.gradient, row * args.gradient_stride + v, args.gradient_type, T(0));
    }
    return;
  }
  const void* student_row = row_start(args.student, row, args.student_stride, args.logits_type);
  const void* teacher_row = kTeacher ? row_start(args.teacher, row, args.teacher_stride, args.logits_type) : nullptr;
  const auto student_logit = [&](int64_t v) {
    return logit_at(student_row, v, args.logits_type, args.student_bias, args.bias_type, c.student_softcap);
  };
  const auto teacher_logit = [&](int64_t v) {
    return kTeacher ? logit_at(teacher_row, v, args.logits_type, args.teacher_bias, args.bias_type, c.teacher_softcap)
                    : T(0);
  };
  // Read before any gradient is written, since the gradient may overwrite the logits.
  const T label_logit = args.targets == nullptr ? T(0) : student_logit(target);

  // First pass: normalisers.
  const SideStats<T> student = block_stats(
      shared.student,
      thread_side_sums(student_row, args.logits_type, args.student_bias, args.bias_type, c.student_softcap, vocab, c),
      c);
  SideStats<T> teacher;
  if constexpr (kTeacher) {
    teacher = block_stats(
        shared.teacher,
        thread_side_sums(teacher_row, args.logits_type, args.teacher_bias, args.bias_type, c.teacher_softcap, vocab, c),
        c);
  }

  // Second pass: the sums over the columns, reduced over the block.
  RowSums<T> mine;
  int student_best = INT32_MAX;
  int teacher_best = INT32_MAX;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const T zs = student_logit(v);
    const T zt = teacher_logit(v);
    any_column<kTeacher>(zs, zt, student, teacher, c, mine);
    if (c.label_smoothing > 0) {
      mine.below_max += student.max - zs;
    }
    student_best = zs == student.max ? min(student_best, static_cast<int>(v)) : student_best;
    teacher_best = kTeacher && zt == teacher.max ? min(teacher_best, static_cast<int>(v)) : teacher_best;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const RowSums<T> warp_sums = warp_merge(mine);
  student_best = warp_min(student_best);
  teacher_best = warp_min(teacher_best);
  if (threadIdx.x % kWarp == 0) {
    shared.sums[warp] = warp_sums;
    shared.student_best[warp] = student_best;
    shared.teacher_best[warp] = teacher_best;
  }
  __syncthreads();
  RowSums<T> sums = shared.sums[0];
  for (int w = 1; w < kWarps; ++w) {
    sums = merge(sums, shared.sums[w]);
    student_best = min(student_best, shared.student_best[w]);
    teacher_best = min(teacher_best, shared.teacher_best[w]);
  }
  const T weight = args.token_weights == nullptr ? T(1) : static_cast<const T*>(args.token_weights)[row];
  if (threadIdx.x == 0) {
    RowEpilogue<T> ends;
    ends.has_teacher = kTeacher;
    ends.has_label = args.targets != nullptr;
    ends.label = target;
    ends.label_logit = label_logit;
    ends.token_weight = weight;
    ends.student_best = min(student_best, shared.student_best[0]);
    ends.teacher_best = min(teacher_best, shared.teacher_best[0]);
    ends.vocab = vocab;
    ends.saved = args.saved == nullptr ? nullptr : static_cast<T*>(args.saved) + row;
    finish_row(out, args.metrics_stride, c, student, teacher, sums, ends);
    out[kTeacherCe * args.metrics_stride] =
        kTeacher && ends.has_label ? teacher_ce(student, teacher, teacher_logit(target)) : T(0);
  }
  if (args.gradient == nullptr) {
    return;
  }
  // Third pass: the gradient.
  const RowFactors<T> factors = row_factors(c, student, teacher, weight);
  const T mean =
      c.divergence == Divergence::kSkewForwardKl ? mean_a<Divergence::kSkewForwardKl>(sums.q_a, sums.q) : sums.q_a;
  RowSums<T> unused;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const T zs = student_logit(v);
    const ColumnResult<T> x = any_column<kTeacher>(zs, teacher_logit(v), student, teacher, c, unused);
    T gradient = any_gradient(zs, x, student, mean, factors, c);
    if (args.targets != nullptr && v == target) {
      gradient -= factors.label * label_slope(label_logit, c);
    }
    store_as(args.gradient, row * args.gradient_stride + v, args.gradient_type, gradient);
  }
}

template <typename T>
const char* launch(const RowArgs& args, cudaStream_t stream) {
  const RowConstants<T> c = row_constants<T>(args);
  const auto blocks = static_cast<unsigned>(args.num_rows);
  if (args.teacher != nullptr) {
    rows_streaming<T, true><<<blocks, kThreads, 0, stream>>>(args, c);
  } else {
    rows_streaming<T, false><<<blocks, kThreads, 0, stream>>>(args, c);
  }
  return launch_error();
}

} // namespace

const char* launch_rows_streaming(const RowArgs& args, cudaStream_t stream) {
  return args.logits_type == ElementType::kFloat64 ? launch<double>(args, stream) : launch<float>(args, stream);
}

} // namespace distill::losses
