// On meta tensors the head makes exactly the allocations of a run on the CPU: the same sizes and releases, in order.
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

// Smaller allocations are scalars, which libtorch wraps and converts on the host.
constexpr int64_t kScalarBytes = 8;

// Serves the CPU and the meta device while it lives, and writes down allocations (their bytes) and releases (minus the
// number of the allocation).
class Recorder {
 public:
  Recorder() : cpu_(this, c10::kCPU), meta_(this, c10::kMeta) {}

  const std::vector<int64_t>& events() const {
    return events_;
  }
  int64_t peak() const {
    return peak_;
  }

 private:
  class Allocator : public c10::Allocator {
   public:
    Allocator(Recorder* recorder, c10::DeviceType device)
        : recorder_(recorder), device_(device), inner_(c10::GetAllocator(device)) {
      c10::SetAllocator(device, this, kPriority);
    }
    ~Allocator() override {
      c10::SetAllocator(device_, inner_, kPriority);
    }
    c10::DataPtr allocate(size_t bytes) override {
      struct Block {
        c10::DataPtr data;
        Recorder* recorder;
        int64_t number;
        int64_t bytes;
      };
      auto* block =
          new Block{inner_->allocate(bytes), recorder_, recorder_->next_number(bytes), static_cast<int64_t>(bytes)};
      recorder_->allocated(block->bytes);
      void* data = block->data.get();
      return {
          data, block,
          [](void* context) {
            const std::unique_ptr<Block> freed(static_cast<Block*>(context));
            freed->recorder->released(freed->number, freed->bytes);
          },
          c10::Device(device_)};
    }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      inner_->copy_data(to, from, bytes);
    }

   private:
    static constexpr uint8_t kPriority = 255;
    Recorder* recorder_;
    c10::DeviceType device_;
    c10::Allocator* inner_;
  };

  int64_t next_number(size_t bytes) {
    return bytes > kScalarBytes ? ++allocations_ : 0;
  }
  void allocated(int64_t bytes) {
    if (bytes > kScalarBytes) {
      events_.push_back(bytes);
      now_ += bytes;
      peak_ = std::max(peak_, now_);
    }
  }
  void released(int64_t number, int64_t bytes) {
    if (bytes > kScalarBytes) {
      events_.push_back(-number);
      now_ -= bytes;
    }
  }

  std::vector<int64_t> events_;
  int64_t allocations_ = 0;
  int64_t now_ = 0;
  int64_t peak_ = 0;
  Allocator cpu_;
  Allocator meta_;
};

LinearHeadInputs on_meta(LinearHeadInputs in, c10::DeviceType planned) {
  for (at::Tensor* tensor :
       {&in.hidden_NH, &in.weight_VH, &in.bias_V, &in.teacher_hidden_NG, &in.teacher_weight_VG, &in.teacher_bias_V,
        &in.targets_N, &in.token_weights_N, &in.topk_ids_NK, &in.topk_log_probs_NK, &in.tail_N, &in.sample_ids_NS,
        &in.sample_weights_NS}) {
    if (tensor->defined()) {
      *tensor = at::empty_strided(tensor->sizes(), tensor->strides(), tensor->options().device(at::kMeta));
    }
  }
  in.meta_device = planned;
  return in;
}

enum class Gradients {
  kNone,
  kAccumulated,
  kWritten
};

struct Recorded {
  std::vector<int64_t> events;
  int64_t peak = 0;
  at::ScalarType dtype = at::kFloat; // of the metrics
  c10::DeviceType device = at::kCPU;
};

LossOptions options_for(const LinearHeadInputs& in) {
  const TeacherKind kind = teacher_kind(in);
  const bool has_teacher = kind != TeacherKind::kNone;
  const Divergence divergence = kind == TeacherKind::kSampled ? Divergence::kForwardKl : Divergence::kJsd;
  return {
      .divergence = has_teacher ? divergence : Divergence::kNone,
      .hard_weight = in.targets_N.defined() ? 1.0 : 0.0,
      .soft_weight = has_teacher ? 1.0 : 0.0};
}

Recorded record(const LinearHeadInputs& in, Gradients gradients, const ChunkOptions& chunks) {
  LinearHeadGrads grads = make_grads(in);
  grads.accumulate = gradients == Gradients::kAccumulated;
  Recorded run;
  const Recorder recorder;
  { // the recorder outlives every tensor that it serves
    const at::Tensor metrics_MN =
        linear_head(in, options_for(in), chunks, gradients == Gradients::kNone ? nullptr : &grads).metrics_MN;
    run.dtype = metrics_MN.scalar_type();
    run.device = metrics_MN.device().type();
  }
  run.events = recorder.events();
  run.peak = recorder.peak();
  return run;
}

struct Case {
  const char* name;
  ProblemSpec spec;
  at::ScalarType teacher = at::kBFloat16;
  bool known = false; // the number of valid tokens
  bool strided = false; // hidden states that no product can read
  TeacherKind kind = TeacherKind::kHidden;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

LinearHeadInputs inputs_of(const Case& c) {
  LinearHeadInputs in = make_problem(c.spec);
  if (in.teacher_hidden_NG.defined()) {
    ProblemSpec teacher = c.spec;
    teacher.dtype = c.spec.dtype == at::kDouble ? at::kDouble : c.teacher;
    take_teacher(in, make_problem(teacher));
  }
  if (c.kind == TeacherKind::kTopK) {
    in = with_topk(in, {}, 300, at::kBFloat16);
  } else if (c.kind == TeacherKind::kSampled) {
    in = with_samples(in, {}, 40, 1, at::kFloat);
  }
  if (c.strided) {
    in.hidden_NH = at::stack({in.hidden_NH, in.hidden_NH}, -1).select(-1, 1);
  }
  if (c.known) {
    set_known(in, true);
  }
  return in;
}

std::vector<Case> cases() {
  const ProblemSpec bf16{.tokens = 200, .vocab = 5003, .hidden = 48, .teacher_hidden = 80, .dtype = at::kBFloat16};
  ProblemSpec full = bf16, fp32 = bf16, fp64 = bf16, alone = bf16, no_targets = bf16, wide = bf16, ignored = bf16;
  full.biases = full.token_weights = true;
  fp32.dtype = at::kFloat;
  fp64.dtype = at::kDouble;
  alone.teacher_hidden = 0;
  no_targets.targets = false;
  wide.teacher_vocab = 6000;
  ignored.ignored = 1;
  return {
      {"bf16", bf16},
      {"bf16_known", bf16, at::kBFloat16, /*known=*/true},
      {"everything_known", full, at::kFloat, /*known=*/true},
      {"biases", full},
      {"fp32", fp32, at::kFloat},
      {"fp32_known_bf16_teacher", fp32, at::kBFloat16, /*known=*/true},
      {"fp64_known", fp64, at::kDouble, /*known=*/true},
      {"labels_alone", alone, at::kBFloat16, /*known=*/true},
      {"no_targets", no_targets},
      {"other_teacher_vocabulary", wide},
      {"all_ignored", ignored, at::kBFloat16, /*known=*/true},
      {"topk", bf16, at::kBFloat16, /*known=*/false, /*strided=*/false, TeacherKind::kTopK},
      {"topk_known_biases", full, at::kBFloat16, /*known=*/true, /*strided=*/false, TeacherKind::kTopK},
      {"topk_fp64", fp64, at::kDouble, /*known=*/true, /*strided=*/false, TeacherKind::kTopK},
      {"samples", fp32, at::kFloat, /*known=*/false, /*strided=*/false, TeacherKind::kSampled},
      {"samples_known_biases", full, at::kFloat, /*known=*/true, /*strided=*/false, TeacherKind::kSampled},
      {"strided", fp32, at::kFloat, /*known=*/true, /*strided=*/true}};
}

class MetaHead : public ::testing::TestWithParam<Case> {};

TEST_P(MetaHead, AllocatesAsOnTheCpu) {
  const LinearHeadInputs in = inputs_of(GetParam());
  const LinearHeadInputs meta = on_meta(in, c10::kCPU);
  for (const Gradients gradients : {Gradients::kNone, Gradients::kAccumulated, Gradients::kWritten}) {
    for (const ChunkOptions& chunks :
         {ChunkOptions{.memory_cap_mb = 9}, ChunkOptions{.memory_cap_mb = 9, .min_chunk_size = 1},
          ChunkOptions{.chunk_size = 7}}) {
      SCOPED_TRACE(
          ::testing::Message() << static_cast<int>(gradients) << " chunk " << chunks.chunk_size << " min "
                               << chunks.min_chunk_size);
      const Recorded real = record(in, gradients, chunks);
      const Recorded planned = record(meta, gradients, chunks);
      EXPECT_EQ(planned.events, real.events);
      EXPECT_EQ(planned.peak, real.peak);
      EXPECT_EQ(planned.device, at::kMeta);
      EXPECT_EQ(planned.dtype, real.dtype);
    }
  }
}

// Of many groups of chunks a run on meta tensors leaves some out, but not the last one.
TEST(MetaHeadOfManyGroups, NeedsTheMemoryOfTheCpu) {
  const LinearHeadInputs in = make_problem({.tokens = 4001, .vocab = 2003, .ignored = 0.2, .dtype = at::kFloat});
  const LinearHeadInputs meta = on_meta(in, c10::kCPU);
  const ChunkOptions chunks{.chunk_size = 50, .memory_cap_mb = 2};
  const auto plan = linear_head_plan(in, options_for(in), chunks, /*needs_grad=*/true);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->num_groups(4001), 17) << plan->description;
  const Recorded real = record(in, Gradients::kAccumulated, chunks);
  const Recorded planned = record(meta, Gradients::kAccumulated, chunks);
  EXPECT_EQ(planned.peak, real.peak);
  EXPECT_LT(planned.events.size(), real.events.size());
}

// On CUDA nothing is converted: beyond the arena there are the metrics and a few numbers for each token.
TEST_P(MetaHead, PlansForCudaWithoutADevice) {
  const LinearHeadInputs meta = on_meta(inputs_of(GetParam()), c10::kCUDA);
  const ChunkOptions chunks{.memory_cap_mb = 9};
  const auto plan = linear_head_plan(meta, options_for(meta), chunks, /*needs_grad=*/true);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->bytes, plan->arena_bytes);
  const int64_t copied = GetParam().strided ? meta.hidden_NH.numel() * meta.hidden_NH.element_size() : 0;
  const int64_t per_token = meta.hidden_NH.size(0) * (2 * kNumTokenMetrics * 8 + 64) + (1 << 12);
  const Recorded run = record(meta, Gradients::kWritten, chunks);
  EXPECT_GE(run.peak, plan->arena_bytes);
  EXPECT_LE(run.peak, plan->arena_bytes + copied + per_token);
}

INSTANTIATE_TEST_SUITE_P(Cases, MetaHead, ::testing::ValuesIn(cases()), [](const auto& c) { return c.param.name; });

} // namespace
} // namespace distill::losses::testing
