#include "tests/losses/cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::losses::testing {

std::vector<std::pair<std::string, Divergence>> soft_divergences() {
  return {
      {"jsd", Divergence::kJsd},
      {"forward_kl", Divergence::kForwardKl},
      {"reverse_kl", Divergence::kReverseKl},
      {"skew_forward", Divergence::kSkewForwardKl},
      {"skew_reverse", Divergence::kSkewReverseKl},
      {"total_variation", Divergence::kTotalVariation}};
}

LinearHeadInputs make_problem(const ProblemSpec& spec) {
  auto generator = at::detail::createCPUGenerator(spec.seed);
  const auto normal = [&](at::IntArrayRef sizes, double scale) {
    return at::randn(sizes, generator, at::TensorOptions(at::kDouble)) * scale;
  };
  const auto place = [&](const at::Tensor& tensor, at::ScalarType dtype) { return tensor.to(spec.device, dtype); };
  const int64_t teacher_vocab = spec.teacher_vocab > 0 ? spec.teacher_vocab : spec.vocab;
  const double weight_scale = spec.logit_scale / std::sqrt(static_cast<double>(spec.hidden));
  LinearHeadInputs in;
  const at::Tensor hidden = normal({spec.tokens, spec.hidden}, 1.0);
  const at::Tensor weight = normal({spec.vocab, spec.hidden}, weight_scale);
  in.hidden_NH = place(hidden, spec.dtype);
  in.weight_VH = place(weight, spec.dtype);
  if (spec.biases) {
    in.bias_V = place(normal({spec.vocab}, 1.0), spec.dtype);
  }
  if (spec.teacher_hidden > 0 && spec.gap < 1.0) {
    // The student with its hidden states moved a little.
    in.teacher_hidden_NG = place(hidden + spec.gap * normal({spec.tokens, spec.hidden}, 1.0), spec.dtype);
    in.teacher_weight_VG = in.weight_VH;
    in.teacher_bias_V = in.bias_V;
  } else if (spec.teacher_hidden > 0) {
    in.teacher_hidden_NG = place(normal({spec.tokens, spec.teacher_hidden}, 1.0), spec.dtype);
    in.teacher_weight_VG = place(
        normal(
            {teacher_vocab, spec.teacher_hidden},
            spec.logit_scale / std::sqrt(static_cast<double>(spec.teacher_hidden))),
        spec.dtype);
    if (spec.biases) {
      in.teacher_bias_V = place(normal({teacher_vocab}, 1.0), spec.dtype);
    }
  }
  in.vocab_size = spec.vocab_size;
  const int64_t vocab = spec.vocab_size > 0 ? spec.vocab_size : std::min(spec.vocab, teacher_vocab);
  if (spec.targets) {
    const at::Tensor labels = at::randint(vocab, {spec.tokens}, generator, at::TensorOptions(at::kLong));
    const at::Tensor ignored = at::rand({spec.tokens}, generator, at::TensorOptions(at::kDouble)) < spec.ignored;
    in.targets_N = labels.masked_fill(ignored, kIgnoreIndex).to(spec.device);
  }
  if (spec.token_weights) {
    in.token_weights_N = place(
        at::rand({spec.tokens}, generator, at::TensorOptions(at::kDouble)) + 0.25,
        spec.dtype == at::kDouble ? at::kDouble : at::kFloat);
  }
  return in;
}

LinearHeadGrads make_grads(const LinearHeadInputs& in, double grad_scale) {
  const at::ScalarType sum = in.hidden_NH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  LinearHeadGrads grads;
  grads.hidden_NH = at::full_like(in.hidden_NH, NAN);
  grads.weight_VH = at::zeros(in.weight_VH.sizes(), in.weight_VH.options().dtype(sum));
  if (in.bias_V.defined()) {
    grads.bias_V = at::zeros(in.bias_V.sizes(), in.bias_V.options().dtype(sum));
  }
  grads.grad_scale = grad_scale;
  return grads;
}

HeadResult run_head(
    const LinearHeadInputs& in, const LossOptions& options, const ChunkOptions& chunks, double grad_scale) {
  HeadResult result;
  result.grads = make_grads(in, grad_scale);
  result.metrics_MN = linear_head(in, options, chunks, &result.grads).metrics_MN;
  return result;
}

void PrintTo(const HeadCase& c, std::ostream* out) {
  *out << c.name;
}

void set_known(LinearHeadInputs& in, bool known) {
  in.valid_tokens = known && in.targets_N.defined() ? in.targets_N.ne(kIgnoreIndex).sum().item<int64_t>() : -1;
}

void take_teacher(LinearHeadInputs& in, const LinearHeadInputs& other) {
  in.teacher_hidden_NG = other.teacher_hidden_NG;
  in.teacher_weight_VG = other.teacher_weight_VG;
  in.teacher_bias_V = other.teacher_bias_V;
}

void expect_same(const HeadResult& found, const HeadResult& expected) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
  };
  EXPECT_TRUE(same(found.metrics_MN, expected.metrics_MN));
  EXPECT_TRUE(same(found.grads.hidden_NH, expected.grads.hidden_NH));
  EXPECT_TRUE(same(found.grads.weight_VH, expected.grads.weight_VH));
  EXPECT_TRUE(same(found.grads.bias_V, expected.grads.bias_V));
}

void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "no error: " << message;
  } catch (const c10::Error& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()), ::testing::HasSubstr(message));
  }
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) {
    return INFINITY;
  }
  const at::Tensor x = a.to(at::kCPU, at::kDouble);
  const at::Tensor y = b.to(at::kCPU, at::kDouble);
  const double norm = y.norm().item<double>();
  const double error = (x - y).norm().item<double>() / (norm > 0 ? norm : 1.0);
  return std::isnan(error) ? INFINITY : error;
}

} // namespace distill::losses::testing
