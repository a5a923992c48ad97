// The cap holds for what the CPU allocator really hands out; cuda_test.cpp holds the same against the CUDA allocator.
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "losses/linear_head.h"
#include "losses/rows_cpu.h"
#include "tests/losses/cases.h"

namespace distill::losses::testing {
namespace {

// Counts the bytes alive while it is the CPU allocator.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) {
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

 private:
  c10::Allocator* inner_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

TEST(CpuMemory, PeakStaysUnderTheCap) {
  for (const auto& [student, teacher] :
       {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kBFloat16},
        std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kFloat, at::kBFloat16}}) {
    for (const bool known : {false, true}) {
      const ProblemSpec spec{.tokens = 600, .vocab = 9001, .hidden = 48, .teacher_hidden = 80, .biases = true};
      ProblemSpec student_spec = spec, teacher_spec = spec;
      student_spec.dtype = student;
      teacher_spec.dtype = teacher;
      LinearHeadInputs in = make_problem(student_spec);
      const LinearHeadInputs other = make_problem(teacher_spec);
      in.teacher_hidden_NG = other.teacher_hidden_NG;
      in.teacher_weight_VG = other.teacher_weight_VG;
      in.teacher_bias_V = other.teacher_bias_V;
      in.valid_tokens = known ? in.targets_N.ne(kIgnoreIndex).sum().item<int64_t>() : -1;
      for (const int64_t cap : {4, 9, 64}) {
        LinearHeadGrads grads = make_grads(in);
        const auto plan = linear_head_plan(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, /*needs_grad=*/true);
        ASSERT_TRUE(plan.ok()) << plan.status();
        CountingAllocator counter;
        linear_head(in, {.hard_weight = 1}, {.memory_cap_mb = cap}, &grads);
        const int64_t per_token = in.hidden_NH.size(0) * (2 * kNumRows * 4 + 64) + (1 << 12);
        EXPECT_LE(counter.peak(), plan->bytes + per_token)
            << at::toString(student) << " " << at::toString(teacher) << " cap " << cap << " known " << known;
        EXPECT_LE(plan->bytes, cap << 20);
        EXPECT_GE(counter.peak(), plan->arena_bytes);
      }
    }
  }
}

// Its buffers are its own, which no allocator of ours sees: the plan counts them by this number.
TEST(CpuMemory, RowKernelThreadsAreInThePlan) {
  LinearHeadInputs in = make_problem({.tokens = 600, .vocab = 9001, .dtype = at::kFloat});
  const auto plan = linear_head_plan(in, {}, {}, /*needs_grad=*/true);
  EXPECT_EQ(
      plan->bytes - plan->arena_bytes, at::get_num_threads() * rows_cpu_thread_bytes(9001, ElementType::kFloat32));
}

} // namespace
} // namespace distill::losses::testing
