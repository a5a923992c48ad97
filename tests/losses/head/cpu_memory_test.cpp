// The cap holds for what the CPU allocator really hands out; cuda_test.cpp holds the same against the CUDA allocator.
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "losses/head/capture.h"
#include "losses/head/linear_head.h"
#include "losses/rows/cpu/row_kernel.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

// Counts the bytes alive, and the allocations of at least `large` bytes, while it is the CPU allocator.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(int64_t large = 0) : inner_(c10::GetCPUAllocator()), large_(large) {
    c10::SetCPUAllocator(this, /*priority=*/100);
  }
  ~CountingAllocator() override {
    c10::SetCPUAllocator(inner_, /*priority=*/100);
  }

  c10::DataPtr allocate(size_t bytes) override {
    struct Block {
      c10::DataPtr data;
      CountingAllocator* counter;
      int64_t bytes;
    };
    auto* block = new Block{inner_->allocate(bytes), this, static_cast<int64_t>(bytes)};
    now_ += block->bytes;
    peak_ = std::max(peak_, now_);
    large_allocations_ += block->bytes >= large_ ? 1 : 0;
    return {
        block->data.get(), block,
        [](void* context) {
          auto* freed = static_cast<Block*>(context);
          freed->counter->now_ -= freed->bytes;
          delete freed;
        },
        c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int64_t peak() const {
    return peak_;
  }
  int64_t large_allocations() const {
    return large_allocations_;
  }

 private:
  c10::Allocator* inner_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
  int64_t large_;
  int64_t large_allocations_ = 0;
};

TEST(CpuMemory, PeakStaysUnderTheCap) {
  for (const auto& [student, teacher] :
       {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kBFloat16},
        std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kFloat, at::kBFloat16}}) {
    for (const bool known : {false, true}) {
      const ProblemSpec spec{.tokens = 200, .vocab = 9001, .hidden = 48, .teacher_hidden = 80, .biases = true};
      ProblemSpec student_spec = spec, teacher_spec = spec;
      student_spec.dtype = student;
      teacher_spec.dtype = teacher;
      LinearHeadInputs in = make_problem(student_spec);
      take_teacher(in, make_problem(teacher_spec));
      set_known(in, known);
      for (const int64_t cap : {4, 9, 64}) {
        LinearHeadGrads grads = make_grads(in);
        const auto plan = linear_head_plan(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, /*needs_grad=*/true);
        ASSERT_TRUE(plan.ok()) << plan.status();
        CountingAllocator counter;
        linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, &grads);
        const int64_t per_token = in.hidden_NH.size(0) * (2 * kNumTokenMetrics * 4 + 64) + (1 << 12);
        EXPECT_LE(counter.peak(), plan->bytes + per_token)
            << at::toString(student) << " " << at::toString(teacher) << " cap " << cap << " known " << known;
        EXPECT_LE(plan->bytes, cap << 20);
        EXPECT_GE(counter.peak(), plan->arena_bytes);
      }
    }
  }
}

TEST(CpuMemory, TopKAndSamplesStayUnderTheCap) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool topk : {true, false}) {
      const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
      const LinearHeadInputs whole = make_problem({.tokens = 700, .vocab = 6007, .biases = true, .dtype = dtype});
      LinearHeadInputs in = topk ? with_topk(whole, options, 512, dtype) : with_samples(whole, options, 256);
      for (const bool known : {false, true}) {
        set_known(in, known);
        for (const int64_t cap : {4, 16}) {
          LinearHeadGrads grads = make_grads(in);
          const auto plan = linear_head_plan(in, options, {.memory_cap_mb = cap}, /*needs_grad=*/true);
          ASSERT_TRUE(plan.ok()) << plan.status();
          CountingAllocator counter;
          linear_head(in, options, {.memory_cap_mb = cap}, &grads);
          const int64_t numbers = 2 * kNumTokenMetrics + kNumSavedValues;
          EXPECT_LE(counter.peak(), plan->bytes + in.hidden_NH.size(0) * (numbers * 4 + 64) + (1 << 12))
              << at::toString(dtype) << topk << known << cap;
          EXPECT_LE(plan->bytes, cap << 20);
        }
      }
    }
  }
}

TEST(CpuMemory, CaptureStaysUnderTheCap) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const LinearHeadInputs problem = make_problem({.tokens = 700, .vocab = 6007, .biases = true, .dtype = dtype});
    CaptureInputs in;
    in.hidden_NG = problem.hidden_NH;
    in.weight_VG = problem.weight_VH;
    in.bias_V = problem.bias_V;
    const at::Tensor keys = at::arange(700, at::TensorOptions(at::kLong));
    for (const int64_t cap : {4, 16}) {
      CountingAllocator counter;
      capture_topk(in, 512, {.memory_cap_mb = cap});
      const int64_t numbers = int64_t{kNumTokenMetrics} + kNumSavedValues + 1 + 2 * 512;
      EXPECT_LE(counter.peak(), (cap << 20) + 700 * numbers * 4 + (1 << 16)) << at::toString(dtype) << cap;
      CountingAllocator drawn;
      capture_samples(in, keys, {.samples = 64}, {.memory_cap_mb = cap});
      EXPECT_LE(drawn.peak(), (cap << 20) + 700 * 2 * 64 * 4 + (1 << 16)) << at::toString(dtype) << cap;
    }
  }
}

// And inputs as they come from a model, or transposed, are not copied at all.
TEST(CpuMemory, AnInputThatNoProductCanReadIsCopiedOnce) {
  LinearHeadInputs in = make_problem({.tokens = 40, .vocab = 2001, .hidden = 64, .dtype = at::kFloat});
  const ChunkOptions chunks{.chunk_size = 4, .memory_cap_mb = 1};
  const auto copies_of_weight = [&] {
    LinearHeadGrads grads = make_grads(in);
    CountingAllocator counter(in.weight_VH.numel() * 4);
    linear_head(in, {.hard_weight = 1}, chunks, &grads);
    return counter.large_allocations();
  };
  EXPECT_EQ(copies_of_weight(), 0);
  const at::Tensor weight = in.weight_VH;
  in.weight_VH = weight.t().contiguous().t();
  EXPECT_EQ(copies_of_weight(), 0);
  in.weight_VH = at::stack({weight, weight}, -1).select(-1, 1);
  EXPECT_EQ(copies_of_weight(), 1);
}

// In fp32 they are all that the CPU takes beyond the arena.
TEST(CpuMemory, RowKernelThreadsAreInThePlan) {
  LinearHeadInputs in = make_problem({.tokens = 600, .vocab = 9001, .dtype = at::kFloat});
  const auto plan = linear_head_plan(in, {}, {}, /*needs_grad=*/true);
  EXPECT_EQ(
      plan->bytes - plan->arena_bytes, at::get_num_threads() * rows_cpu_thread_bytes(9001, ElementType::kFloat32));
}

} // namespace
} // namespace distill::losses::testing
