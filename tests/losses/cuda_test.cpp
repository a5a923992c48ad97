// Properties that only a GPU can show: 64-bit offsets, no synchronisation, graphs, other streams, the memory really
// taken.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "losses/head/capture.h"
#include "losses/logits/logits_loss.h"
#include "losses/rows/cuda/cluster/choose_size.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

TEST(Cuda, MoreThanTwoToThe31Logits) {
  const int64_t rows = 8210;
  const int64_t vocab = 262144;
  const auto on = at::TensorOptions(at::kFloat).device(test_device());
  const at::Tensor student = at::randn({rows, vocab}, on);
  const at::Tensor teacher = at::randn({rows, vocab}, on);
  const at::Tensor targets = at::randint(vocab, {rows}, on.dtype(at::kLong));
  for (const RowStrategy strategy : {RowStrategy::kCluster, RowStrategy::kStreaming}) {
    const at::Tensor gradient = at::empty({rows, vocab}, on.dtype(at::kBFloat16));
    const at::Tensor all =
        logits_loss({student, teacher, targets, {}}, {.hard_weight = 1}, gradient, {.strategy = strategy});
    const int64_t begin = rows - 5; // beyond 2^31 elements
    const at::Tensor alone_gradient = at::empty({5, vocab}, on.dtype(at::kBFloat16));
    const at::Tensor alone = logits_loss(
        {student.narrow(0, begin, 5), teacher.narrow(0, begin, 5), targets.narrow(0, begin, 5), {}}, {.hard_weight = 1},
        alone_gradient, {.strategy = strategy});
    EXPECT_TRUE(at::equal(all.narrow(1, begin, 5), alone));
    EXPECT_TRUE(at::equal(gradient.narrow(0, begin, 5), alone_gradient));
    EXPECT_TRUE(at::isfinite(all).all().item<bool>());
  }
}

LinearHeadInputs bf16_problem(int64_t tokens) {
  return make_problem({.tokens = tokens, .vocab = 32000, .hidden = 256, .teacher_hidden = 512, .dtype = at::kBFloat16});
}

// Expects that the host does not wait for the device in the call.
void expect_no_synchronisation(const std::function<void()>& call) {
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(call());
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

// Returns how many bytes more than before are allocated at the peak of the call.
int64_t peak_bytes(const std::function<void()>& call) {
  c10::cuda::device_synchronize();
  const auto index = test_device().index();
  const auto allocated = [&] { return c10::cuda::CUDACachingAllocator::getDeviceStats(index).allocated_bytes[0]; };
  const int64_t before = allocated().current;
  c10::cuda::CUDACachingAllocator::resetPeakStats(index);
  call();
  return allocated().peak - before;
}

TEST(Cuda, NeverSynchronisesWithTheHost) {
  LinearHeadInputs in = bf16_problem(600);
  LinearHeadGrads grads = make_grads(in);
  linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = 64}, &grads);
  for (const bool known : {false, true}) {
    set_known(in, known);
    SCOPED_TRACE(known);
    expect_no_synchronisation([&] { linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = 64}, &grads); });
  }
}

// Top-k and samples: no synchronisation, under the cap, and the same within a graph.
TEST(Cuda, SparseTeachersNeitherSynchroniseNorBreakTheCap) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
  for (const bool topk : {true, false}) {
    for (const bool known : {false, true}) {
      const LinearHeadInputs whole = bf16_problem(1200);
      LinearHeadInputs in =
          topk ? with_topk(whole, options, 64, at::kBFloat16) : with_samples(whole, options, 32, 1, at::kFloat);
      set_known(in, known);
      LinearHeadGrads grads = make_grads(in);
      linear_head(in, options, {.memory_cap_mb = 64}, &grads);
      SCOPED_TRACE(::testing::Message() << topk << known);
      const int64_t peak = peak_bytes(
          [&] { expect_no_synchronisation([&] { linear_head(in, options, {.memory_cap_mb = 64}, &grads); }); });
      const int64_t small = 1200 * ((2 * kNumTokenMetrics + kNumSavedValues) * 4 + 64) + (1 << 16);
      EXPECT_LE(peak, (64 << 20) + small);
    }
  }
}

TEST(Cuda, CaptureDoesNotSynchronise) {
  const LinearHeadInputs problem = bf16_problem(600);
  CaptureInputs in;
  in.hidden_NG = problem.hidden_NH;
  in.weight_VG = problem.weight_VH;
  const at::Tensor keys = at::arange(600, at::TensorOptions(at::kLong)).to(test_device());
  const TopK first = capture_topk(in, 64, {.memory_cap_mb = 64});
  TopK second;
  expect_no_synchronisation([&] {
    second = capture_topk(in, 64, {.memory_cap_mb = 64});
    capture_samples(in, keys, {.samples = 32}, {.memory_cap_mb = 64});
  });
  EXPECT_TRUE(at::equal(first.ids_NK, second.ids_NK));
  EXPECT_TRUE(at::equal(first.log_probs_NK, second.log_probs_NK));
  EXPECT_TRUE(at::equal(first.tail_N, second.tail_N));
}

TEST(Cuda, RunsInAGraphAndOnAnotherStream) {
  LinearHeadInputs in = bf16_problem(600);
  const HeadResult eager = run_head(in, {.hard_weight = 1}, {.memory_cap_mb = 64});
  LinearHeadGrads grads = make_grads(in);
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  at::Tensor metrics;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    stream.synchronize();
    c10::cuda::device_synchronize();
    linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = 64}, &grads);
    grads.weight_VH.zero_();
    stream.synchronize();
    graph.capture_begin();
    metrics = linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = 64}, &grads).metrics_MN;
    graph.capture_end();
    grads.weight_VH.zero_();
    grads.hidden_NH.zero_();
    graph.replay();
    stream.synchronize();
  }
  expect_same({metrics, grads}, eager);
}

// The cap holds for what the allocator really hands out, beyond the metrics and compaction's small vectors.
TEST(Cuda, PeakMemoryStaysUnderTheCap) {
  for (const auto& [tokens, known] : {std::pair{4096, false}, std::pair{4096, true}, std::pair{333, false}}) {
    LinearHeadInputs in = bf16_problem(tokens);
    set_known(in, known);
    for (const int64_t cap : {16, 64, 256}) {
      LinearHeadGrads grads = make_grads(in);
      linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, &grads); // cuBLAS takes its workspace once
      const int64_t peak = peak_bytes([&] { linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, &grads); });
      const int64_t small = tokens * (2 * kNumTokenMetrics * 4 + 64) + (1 << 16);
      EXPECT_LE(peak, (cap << 20) + small) << "cap " << cap << " tokens " << tokens;
    }
  }
}

TEST(Cuda, StrategiesThatCannotRunSayWhy) {
  const auto on = at::TensorOptions(at::kFloat).device(test_device());
  const at::Tensor odd = at::randn({3, 1001}, on).to(at::kBFloat16); // rows at multiples of 2 bytes
  const LossOptions hard{.divergence = Divergence::kNone, .hard_weight = 0, .soft_weight = 0};
  EXPECT_NO_THROW(logits_loss({odd, {}, {}, {}}, hard, {}, {.strategy = RowStrategy::kCluster}));
  LossOptions general = hard;
  general.label_smoothing = 0.1;
  EXPECT_THROW(logits_loss({odd, {}, {}, {}}, general, {}, {.strategy = RowStrategy::kCluster}), c10::Error);
  EXPECT_NO_THROW(logits_loss({odd, {}, {}, {}}, general));
  const at::Tensor wide = at::randn({1, 1 << 20}, on);
  EXPECT_THROW(
      logits_loss({wide, wide, {}, {}}, {}, {}, {.strategy = RowStrategy::kCluster, .cluster_size = 1}), c10::Error);
  EXPECT_NO_THROW(logits_loss({wide, wide, {}, {}}, {}));
}

TEST(Cuda, ClustersOfEverySizeThatIsChosenRun) {
  for (const bool teacher : {false, true}) {
    ClustersAtOnce all{};
    for (int size = 2; size <= kMaxCluster; ++size) {
      all[static_cast<size_t>(size)] = clusters_at_once(teacher, size);
    }
    std::cout << (teacher ? "with" : "without") << " a teacher, clusters of 2 to 16 blocks at once:";
    for (int size = 2; size <= kMaxCluster; ++size) {
      std::cout << " " << all[static_cast<size_t>(size)];
    }
    std::cout << "\n";
    for (const cluster::Mode mode : {cluster::Mode::kUnit, cluster::Mode::kUnitLoss, cluster::Mode::kCappedLoss}) {
      std::cout << "  mode " << static_cast<int>(mode) << ":\n";
      for (const int64_t vocab : {32000, 128256, 151936, 200064, 201088, 256000, 262144, 262208, 320000}) {
        const int size = best_cluster_size(vocab, all, row_times(teacher, mode), kLongTiles);
        std::cout << "    " << vocab << ": " << size << " blocks, " << cluster_plan(vocab, size).tiles << " tiles\n";
        EXPECT_GT(size, 0) << vocab;
      }
    }
  }
}

} // namespace
} // namespace distill::losses::testing
