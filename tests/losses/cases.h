#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "losses/head/linear_head.h"
#include "tests/losses/device.h"

// Random problems for the head, and running them.
namespace distill::losses::testing {

struct ProblemSpec {
  int64_t tokens = 13;
  int64_t vocab = 101; // rows of the student's lm_head
  int64_t teacher_vocab = 0; // 0: the same
  int64_t vocab_size = 0;
  int64_t hidden = 16;
  int64_t teacher_hidden = 24; // 0: no teacher
  double logit_scale = 3.0; // standard deviation of the logits
  double gap = 1.0; // of the student's logits from the teacher's, relative; 0: identical models
  bool targets = true;
  double ignored = 0.3; // fraction of the tokens
  bool token_weights = false;
  bool biases = false;
  at::ScalarType dtype = at::kDouble;
  at::Device device = test_device();
  uint64_t seed = 1;
};

LinearHeadInputs make_problem(const ProblemSpec& spec);

// A call of the head, for parameterised tests.
struct HeadCase {
  std::string name;
  LossOptions options;
  ProblemSpec problem;
};

void PrintTo(const HeadCase& c, std::ostream* out);

// Every divergence that compares two distributions, with a name for test cases.
std::vector<std::pair<std::string, Divergence>> soft_divergences();

// All options away from their defaults.
inline LossOptions every_option(Divergence divergence) {
  return {
      .divergence = divergence,
      .beta = 0.2,
      .skew_alpha = 0.4,
      .temperature = 1.7,
      .scale_by_temperature_squared = true,
      .hard_weight = 0.6,
      .soft_weight = 0.9,
      .label_smoothing = 0.1,
      .z_loss = 1e-2,
      .student_softcap = 8,
      .teacher_softcap = 5};
}

// Zeroed gradient buffers for every gradient that the inputs allow.
LinearHeadGrads make_grads(const LinearHeadInputs& inputs, double grad_scale = 1.0);

struct HeadResult {
  at::Tensor metrics_MN;
  LinearHeadGrads grads;
};

HeadResult run_head(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks = {},
    double grad_scale = 1.0);

// Gives the head the number of tokens that count, or takes it away.
void set_known(LinearHeadInputs& inputs, bool known);

// Gives a problem the teacher of another one, which may have another dtype.
void take_teacher(LinearHeadInputs& inputs, const LinearHeadInputs& other);

// Expects the same bits in the metrics and in every gradient.
void expect_same(const HeadResult& found, const HeadResult& expected);

// Expects a c10::Error with this message.
void expect_error(const std::function<void()>& call, const std::string& message);

// ||a - b|| / ||b||, in fp64 on the CPU; the plain norm of a where b is 0. NaN or a shape mismatch gives infinity.
double relative_error(const at::Tensor& a, const at::Tensor& b);

} // namespace distill::losses::testing
