// Every mistake of a caller gives an error that names the tensor and the numbers.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/cases.h"

namespace distill::losses::testing {
namespace {

struct Mistake {
  std::string name;
  std::function<void(LinearHeadInputs&, LossOptions&, ChunkOptions&, LinearHeadGrads&)> make;
  std::string message;
};

void PrintTo(const Mistake& m, std::ostream* out) {
  *out << m.name;
}

// Top-k in place of the teacher.
void make_topk(LinearHeadInputs& in) {
  in.teacher_hidden_NG = in.teacher_weight_VG = in.teacher_bias_V = at::Tensor();
  in.topk_ids_NK = at::arange(4, at::TensorOptions(at::kInt)).expand({13, 4}).contiguous().to(test_device());
  in.topk_log_probs_NK = at::full({13, 4}, -2.0, at::TensorOptions(at::kFloat).device(test_device()));
  in.tail_N = at::full({13}, 0.4, at::TensorOptions(at::kFloat).device(test_device()));
}

#define MISTAKE(name, message, ...)                                             \
  Mistake {                                                                     \
#name,                                                                      \
        [](LinearHeadInputs & in, LossOptions & options, ChunkOptions & chunks, \
           LinearHeadGrads & grads) { __VA_ARGS__; }, message                   \
  }

const std::vector<Mistake> kMistakes {
  MISTAKE(hidden_missing, "hidden_NH", in.hidden_NH = at::Tensor()),
      MISTAKE(hidden_3d, "hidden_NH", in.hidden_NH = in.hidden_NH.unsqueeze(0)),
      MISTAKE(
          hidden_int, "hidden_NH: expected fp32, bf16 or fp64, found Int", in.hidden_NH = in.hidden_NH.to(at::kInt)),
      MISTAKE(weight_missing, "weight_VH", in.weight_VH = at::Tensor()),
      MISTAKE(
          weight_width, "weight_VH: expected shape [101, 16], found [101, 15]",
          in.weight_VH = in.weight_VH.narrow(1, 0, 15)),
      MISTAKE(weight_dtype, "weight_VH: expected Double, found Float", in.weight_VH = in.weight_VH.to(at::kFloat)),
      MISTAKE(bias_size, "bias_V: expected shape [101], found [100]", in.bias_V = in.bias_V.narrow(0, 0, 100)),
      MISTAKE(
          targets_length, "targets_N: expected shape [13], found [12]", in.targets_N = in.targets_N.narrow(0, 0, 12)),
      MISTAKE(targets_dtype, "targets_N: expected Long, found Int", in.targets_N = in.targets_N.to(at::kInt)),
      MISTAKE(weights_dtype, "token_weights_N: expected Double, found Float", in.token_weights_N = at::ones({13})),
      MISTAKE(
          teacher_rows, "teacher_hidden_NG: expected shape [13, 24], found [12, 24]",
          in.teacher_hidden_NG = in.teacher_hidden_NG.narrow(0, 0, 12)),
      MISTAKE(
          teacher_width, "teacher_weight_VG: expected shape [101, 24], found [101, 23]",
          in.teacher_weight_VG = in.teacher_weight_VG.narrow(1, 0, 23)),
      MISTAKE(
          teacher_dtype, "teacher_hidden_NG: expected fp64 beside a student of Double, found Float",
          in.teacher_hidden_NG = in.teacher_hidden_NG.to(at::kFloat)),
      MISTAKE(
          teacher_weight_dtype, "teacher_weight_VG: expected Double, found Float",
          in.teacher_weight_VG = in.teacher_weight_VG.to(at::kFloat)),
      MISTAKE(teacher_weight_missing, "teacher_weight_VG: expected a tensor", in.teacher_weight_VG = at::Tensor()),
      MISTAKE(
          teacher_hidden_missing, "teacher_weight_VG or teacher_bias_V is given without teacher_hidden_NG",
          in.teacher_hidden_NG = at::Tensor()),
      MISTAKE(
          two_teachers, "expected one of teacher_hidden_NG, topk_ids_NK and sample_ids_NS, found more",
          in.sample_ids_NS = at::zeros({13, 4}, at::TensorOptions(at::kInt))),
      MISTAKE(topk_rows, "topk_ids_NK: expected shape [13, 4], found [12, 4]", make_topk(in);
              in.topk_ids_NK = in.topk_ids_NK.narrow(0, 0, 12)),
      MISTAKE(topk_ids_dtype, "topk_ids_NK: expected Int, found Long", make_topk(in);
              in.topk_ids_NK = in.topk_ids_NK.to(at::kLong)),
      MISTAKE(topk_values_shape, "topk_log_probs_NK: expected shape [13, 4], found [13, 3]", make_topk(in);
              in.topk_log_probs_NK = in.topk_log_probs_NK.narrow(1, 0, 3)),
      MISTAKE(topk_values_dtype, "topk_log_probs_NK: expected fp32, bf16, fp16 or fp64, found Int", make_topk(in);
              in.topk_log_probs_NK = in.topk_log_probs_NK.to(at::kInt)),
      MISTAKE(topk_wide, "topk_ids_NK: expected 1 to 1024 columns, found 1025", make_topk(in);
              in.topk_ids_NK = at::zeros({13, 1025}, at::TensorOptions(at::kInt))),
      MISTAKE(topk_without_tail, "tail_N: expected the probability of the other tokens, found none", make_topk(in);
              in.tail_N = at::Tensor()),
      MISTAKE(tail_dtype, "tail_N: expected fp32 or fp64, found Half", make_topk(in);
              in.tail_N = in.tail_N.to(at::kHalf)),
      MISTAKE(tail_alone, "topk_log_probs_NK or tail_N is given without topk_ids_NK", in.tail_N = at::zeros({13})),
      MISTAKE(topk_temperature, "temperature: the teacher's kind topk was captured at temperature 2, found 1",
              make_topk(in);
              in.teacher_temperature = 2),
      MISTAKE(samples_jsd, "divergence: samples of the teacher estimate forward_kl only", make_topk(in);
              in.sample_ids_NS = in.topk_ids_NK; in.sample_weights_NS = in.topk_log_probs_NK;
              in.topk_ids_NK = in.topk_log_probs_NK = in.tail_N = at::Tensor()),
      MISTAKE(sample_weights_missing, "sample_weights_NS: expected a tensor of shape [13, 4], found none",
              make_topk(in);
              in.sample_ids_NS = in.topk_ids_NK; in.topk_ids_NK = in.topk_log_probs_NK = in.tail_N = at::Tensor();
              options.divergence = Divergence::kForwardKl),
      MISTAKE(no_teacher, "the loss has a soft term", in.teacher_hidden_NG = at::Tensor();
              in.teacher_weight_VG = at::Tensor(); in.teacher_bias_V = at::Tensor()),
      MISTAKE(no_labels, "the loss has a hard term", in.targets_N = at::Tensor(); options.hard_weight = 1),
      MISTAKE(
          vocab_size, "vocab_size: expected at most the rows of both lm_heads, 101, found 102", in.vocab_size = 102),
      MISTAKE(valid_tokens, "valid_tokens: expected at most 13", in.valid_tokens = 14),
      MISTAKE(valid_without_targets, "without targets_N every one of the 13 tokens is valid, found 12",
              in.targets_N = at::Tensor();
              in.valid_tokens = 12),
      MISTAKE(options_beta, "beta: expected a number in [0, 1]", options.beta = 2),
      MISTAKE(chunk_negative, "chunk_size: expected", chunks.chunk_size = -1),
      MISTAKE(grads_missing, "grads: expected a tensor for hidden_NH", grads = LinearHeadGrads()),
      MISTAKE(
          grad_hidden_dtype, "grads.hidden_NH: expected Double, found Float",
          grads.hidden_NH = grads.hidden_NH.to(at::kFloat)),
      MISTAKE(
          grad_weight_dtype, "grads.weight_VH: expected Double, found Float",
          grads.weight_VH = grads.weight_VH.to(at::kFloat)),
      MISTAKE(
          grad_weight_shape, "grads.weight_VH: expected shape", grads.weight_VH = grads.weight_VH.narrow(0, 0, 100)),
      MISTAKE(grad_bias_without_bias, "grads.bias_V is given without bias_V", in.bias_V = at::Tensor()),
};

class HeadChecks : public ::testing::TestWithParam<Mistake> {};

TEST_P(HeadChecks, NameTheTensor) {
  LinearHeadInputs in = make_problem({.biases = true});
  LossOptions options;
  ChunkOptions chunks;
  LinearHeadGrads grads = make_grads(in);
  const at::Tensor weight_before = grads.weight_VH;
  GetParam().make(in, options, chunks, grads);
  expect_error([&] { linear_head(in, options, chunks, &grads); }, GetParam().message);
  EXPECT_EQ(weight_before.abs().max().item<double>(), 0) << "written to before the check";
}

INSTANTIATE_TEST_SUITE_P(Mistakes, HeadChecks, ::testing::ValuesIn(kMistakes), [](const auto& c) {
  return c.param.name;
});

TEST(HeadChecks, LabelsOutsideTheVocabularyAreAnError) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "a device-side assertion there, which ends the process's use of the device";
  }
  for (const int64_t label : {-1, 101}) {
    LinearHeadInputs in = make_problem({.ignored = 0});
    in.targets_N[3] = label;
    EXPECT_THROW(run_head(in, {.hard_weight = 1}), c10::Error);
  }
}

} // namespace
} // namespace distill::losses::testing
