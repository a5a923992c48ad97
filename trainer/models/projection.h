#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/float8_counts.h"
#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/dropout.h"
#include "trainer/models/ops/float8.h"

// One matrix product of a layer: y = x W^T (+ bias), and with adapters (adapter.h) + scale * (x A^T) B^T in the rows of
// each adapted module. N tokens, I inputs, O outputs, H hidden, R the sum of the modules' ranks. Whether the weight is
// float8, and which kernel makes its input, adds a residual or rounds, is decided here and nowhere else.
namespace distill::models {

// The adapters of a product's modules.
struct Adapter {
  struct Module {
    at::Tensor b_OR; // of its rows and its rank
    int64_t first_row = 0; // of the product's
    double scale = 1;
  };
  // The modules' A, one below the other; of experts, which have one module, those of all experts, and so the B.
  // Undefined: there is no adapter.
  at::Tensor a_RI;
  std::vector<Module> modules;
  Dropout dropout; // of the input, while the model is trained

  bool exists() const {
    return a_RI.defined();
  }
};

// Views of a unit's flat buffer. The same struct names the parameters' gradients (fp32, or fp64 for fp64). An undefined
// gradient is not computed.
struct Projection {
  at::Tensor weight_OI; // Hugging Face's layout
  at::Tensor bias_O; // undefined: none
  at::Tensor scale_O; // of the rows of a float8 weight (ops/float8.h); undefined: the weight is in the compute dtype
  Float8CountsOf float8_counts; // of a model that is trained in float8
  bool float8_weight_gradient = false; // of a float8 weight that is trained: its gradient is a float8 product, too
  Adapter adapter;
  bool is_new = false; // of a gradient: the matrices' are uninitialised, to be overwritten instead of added to

  bool is_float8() const {
    return scale_O.defined();
  }
  // Of a gradient: whether add_weight_gradient() reads the product's input.
  bool needs_input() const {
    return weight_OI.defined() || adapter.exists();
  }
};

// What a sublayer reads: x, or its RMSNorm.
struct SublayerInput {
  at::Tensor x_NH;
  at::Tensor norm_H; // the norm's weight; undefined: x is read as it is
  double eps = 0;
  double offset = 0; // of the norm, as of a NormSpec
  // Forward only: the norm is that of x + residual, which is written into x (on CUDA by the norm's kernel). Undefined:
  // of x.
  at::Tensor residual_NH;
  at::Tensor rstd_N; // 1/rms of the norm's input; written by operand_of, read by value() and gradient()

  // What was read; with a norm it is computed again, bit for bit.
  at::Tensor value() const;
  // The gradient of x, given that of what was read and that of the stream which goes on past the sublayer; adds to the
  // gradient of the norm's weight. Writes into dinput_NH where there is no norm.
  at::Tensor gradient(at::Tensor dinput_NH, const at::Tensor& dstream_NH, at::Tensor& dnorm_H) const;
};

// The input of a projection in the form that its product multiplies.
struct Operand {
  at::Tensor values_NI; // undefined if the weight is float8 and has no adapter
  Float8Rows float8; // defined if the weight is float8
  at::ScalarType dtype = at::kFloat; // of the result
};

Operand operand_of(const Projection& projection, const at::Tensor& x_NI);
Operand operand_of(const Projection& projection, SublayerInput& input);
// The activation of [N, 2I], gate and up.
Operand operand_of_glu(const Projection& projection, const at::Tensor& gate_up_N2I, Activation activation);

at::Tensor multiply(const Projection& projection, const Operand& operand);
// residual + x W^T, of a projection without bias. The residual is left as it is: written into it, the sum had other
// bits than in a tensor of its own, and a block that runs again others than one that keeps everything.
at::Tensor multiply_add(const Projection& projection, const Operand& operand, const at::Tensor& residual_NO);

// x W^T in fp32 (fp64 for fp64), of a projection without bias that is not in float8: few numbers with a large effect.
at::Tensor multiply_fp32(const Projection& projection, const at::Tensor& x_NI);

// What is made of dy for both gradients below: whichever is asked for first makes it. One for each dy; to be released
// when both are there.
struct SharedGradient {
  at::Tensor dlow_NR; // of a projection with adapters: scale * dy B
  Float8Rows rounded_NO; // of one with a float8_weight_gradient: dy times the weight's scales
};
// dy W, and what the adapters add to it.
at::Tensor input_gradient(const Projection& projection, const at::Tensor& dy_NO, SharedGradient* shared = nullptr);
// Adds dy^T x to the weight's gradient, and to those of the adapters. It is a product in the compute dtype, unless the
// projection has a float8_weight_gradient. `gradient`: of `projection`.
void add_weight_gradient(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_NO, const at::Tensor& x_NI,
    SharedGradient* shared = nullptr);
// Adds the sum of dy over tokens to the bias' gradient.
void add_bias_gradient(Projection& gradient, const at::Tensor& dy_NO);

// The same of a projection whose weight is those of several groups, one below the other: rows that are sorted by group
// are multiplied by their group's (ops/grouped_linear.h). M rows, G groups. Each group has an adapter of its own, or
// none has; nothing is left out of their inputs. The operand of rows that `rows_M` (int32) chooses from x.
Operand operand_of_rows(const Projection& projection, const at::Tensor& x_NI, const at::Tensor& rows_M);
at::Tensor multiply_groups(const Projection& projection, const Operand& operand, const at::Tensor& ends_G);
// With a float8 weight it is a product in the compute dtype, of a copy of the weight that lives as long as the call.
at::Tensor input_gradient_of_groups(
    const Projection& projection, const at::Tensor& dy_MO, const at::Tensor& ends_G, SharedGradient* shared = nullptr);
void add_weight_gradient_of_groups(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_MO, const at::Tensor& x_MI,
    const at::Tensor& ends_G, SharedGradient* shared = nullptr);

} // namespace distill::models
