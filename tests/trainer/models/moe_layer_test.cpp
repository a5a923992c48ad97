#include "trainer/models/moe_layer.h"

#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/device/simulation.h"

namespace distill::models {
namespace {

// Where the tokens go.
enum class Visits {
  kAnywhere,
  kOneWithout, // no token visits expert 1
  kAllToOne, // every token visits expert 2
  kTies, // experts 0 and 3 have equal probabilities for every token
};

struct Weights {
  at::Tensor norm_H, router_EH, gate_up, down;

  std::vector<at::Tensor> all() const {
    return {norm_H, router_EH, gate_up, down};
  }
  template <typename F>
  Weights map(const F& f) const {
    return {f(norm_H), f(router_EH), f(gate_up), f(down)};
  }
  MlpParams params() const {
    MlpParams params;
    params.router.weight_OI = router_EH;
    params.gate_up.weight_OI = gate_up;
    params.down.weight_OI = down;
    return params;
  }
};

class MoeLayerTest : public DeviceTest {
 protected:
  static constexpr int64_t kTokens = 37, kHidden = 32, kFfn = 16, kExperts = 5;

  struct Case {
    MlpSpec spec;
    Weights weights;
    bool norm = true;
    at::Tensor x_NH, dy_NH, stream_NH; // stream: the gradient that goes on past the sublayer
  };

  static Case make_case(bool normalise, int64_t per_token, Visits visits, at::ScalarType dtype = at::kDouble) {
    Case c;
    c.spec = {.ffn = kFfn, .experts = ExpertsSpec{kExperts, per_token, normalise}};
    c.norm = dtype == at::kDouble;
    const auto scaled = [&](at::IntArrayRef sizes, double scale) { return randn(sizes, dtype).mul_(scale); };
    c.weights = {
        c.norm ? scaled({kHidden}, 0.2).add_(1) : at::Tensor(), scaled({kExperts, kHidden}, 0.5),
        scaled({kExperts * 2 * kFfn, kHidden}, 0.3), scaled({kExperts * kHidden, kFfn}, 0.3)};
    c.x_NH = scaled({kTokens, kHidden}, 1);
    c.dy_NH = scaled({kTokens, kHidden}, 1);
    c.stream_NH = scaled({kTokens, kHidden}, 1);
    c.x_NH.select(1, 0).fill_(2); // a constant element, with which an expert's row of the router shifts its logits
    if (visits == Visits::kOneWithout) {
      c.weights.router_EH.select(1, 0).fill_(0);
      c.weights.router_EH[1][0] = -100;
    } else if (visits == Visits::kAllToOne) {
      c.weights.router_EH.select(1, 0).fill_(0);
      c.weights.router_EH[2][0] = 8;
    } else if (visits == Visits::kTies) {
      c.weights.router_EH[3].copy_(c.weights.router_EH[0]);
    }
    return c;
  }

  struct Result {
    at::Tensor y_NH, dx_NH;
    Weights grads;
    Routing routing;
  };

  static SublayerInput input_of(const Case& c) {
    return {.x_NH = c.x_NH, .norm_H = c.weights.norm_H, .eps = 1e-6};
  }

  // `fill`: of the gradients before the pass; nullopt: they are overwritten.
  static Result run(const Case& c, std::optional<double> fill = 0) {
    Result result;
    const MlpContext context{c.spec};
    const at::ScalarType grad_dtype = c.x_NH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    result.grads = c.weights.map([&](const at::Tensor& weight) {
      return weight.defined() ? at::full(weight.sizes(), fill.value_or(NAN), options(grad_dtype)) : at::Tensor();
    });
    MlpParams grads = result.grads.params();
    for (Projection* projection : {&grads.router, &grads.gate_up, &grads.down}) {
      projection->is_new = !fill.has_value();
    }
    if (!fill && c.norm) {
      result.grads.norm_H.zero_();
    }
    SublayerInput input = input_of(c);
    MlpSaved saved;
    mlp_layer_rebuild(context, c.weights.params(), input, saved);
    result.routing = saved.routing;
    result.y_NH = mlp_layer_output(context, c.weights.params(), saved);
    result.dx_NH =
        mlp_layer_backward(context, c.weights.params(), c.dy_NH, c.stream_NH, input, saved, grads, result.grads.norm_H);
    return result;
  }

  // Autograd through the plain computation, in fp64.
  static Result reference(const Case& c) {
    const auto as_leaf = [](const at::Tensor& value) {
      return value.defined() ? leaf(value.to(at::kDouble)) : at::Tensor();
    };
    const Weights weights = c.weights.map(as_leaf);
    const at::Tensor x = as_leaf(c.x_NH);
    Result result;
    result.y_NH = reference_mlp(c.spec, weights.params(), c.norm ? reference_rms_norm(x, weights.norm_H, 1e-6) : x);
    std::vector<at::Tensor> inputs{x, weights.router_EH, weights.gate_up, weights.down};
    if (c.norm) {
      inputs.push_back(weights.norm_H);
    }
    const auto grads = reference_gradients(result.y_NH, c.dy_NH.to(at::kDouble), inputs);
    result.dx_NH = grads[0] + c.stream_NH.to(at::kDouble);
    result.grads = {c.norm ? grads[4] : at::Tensor(), grads[1], grads[2], grads[3]};
    return result;
  }

  static void expect_equal(const Result& actual, const Result& expected, double tolerance) {
    EXPECT_LT(relative_error(actual.y_NH, expected.y_NH), tolerance);
    EXPECT_LT(relative_error(actual.dx_NH, expected.dx_NH), tolerance);
    const auto found = actual.grads.all(), wanted = expected.grads.all();
    for (size_t i = 0; i < found.size(); ++i) {
      if (wanted[i].defined()) { // the gradients are of the order of 1, or, of a router without effect, 0
        EXPECT_LT(relative_error(found[i], wanted[i], /*floor=*/1e-2), tolerance) << "weight " << i;
      }
    }
  }

  static at::Tensor visits_of_experts(const Routing& routing) {
    return at::diff(routing.ends_E, 1, 0, at::zeros({1}, routing.ends_E.options())).cpu();
  }
};

TEST_F(MoeLayerTest, EveryGradientMatchesAutogradInFp64) {
  for (const bool normalise : {false, true}) {
    for (const int64_t per_token : {1, 2, 5}) {
      for (const Visits visits : {Visits::kAnywhere, Visits::kOneWithout, Visits::kAllToOne}) {
        SCOPED_TRACE(testing::Message() << normalise << ", " << per_token << ", " << static_cast<int>(visits));
        const Case c = make_case(normalise, per_token, visits);
        const Result actual = run(c);
        expect_equal(actual, reference(c), 1e-11);
        const at::Tensor counts = visits_of_experts(actual.routing);
        EXPECT_EQ(counts.sum().item<int64_t>(), kTokens * per_token);
        if (visits == Visits::kOneWithout && per_token < kExperts) {
          EXPECT_EQ(counts[1].item<int64_t>(), 0);
        }
        if (visits == Visits::kAllToOne) {
          EXPECT_EQ(counts[2].item<int64_t>(), kTokens);
        }
      }
    }
  }
}

// Which of two equal experts is taken is open, but it is one of the best, and the same one in every run.
TEST_F(MoeLayerTest, TiesAreBrokenAlikeInEveryRun) {
  for (const int64_t per_token : {1, 2}) {
    const Case c = make_case(/*normalise=*/true, per_token, Visits::kTies);
    const Result first = run(c), second = run(c);
    EXPECT_TRUE(at::equal(first.routing.experts_NK, second.routing.experts_NK));
    EXPECT_TRUE(at::equal(first.y_NH, second.y_NH));
    const at::Tensor chosen =
        at::zeros_like(first.routing.probs_NE).scatter(1, first.routing.experts_NK, 1).to(at::kBool);
    EXPECT_TRUE(at::equal(chosen.sum(1), at::full({kTokens}, per_token, options(at::kLong)))) << "an expert twice";
    const at::Tensor worst = first.routing.probs_NE.masked_fill(~chosen, 2).amin(1);
    const at::Tensor best = first.routing.probs_NE.masked_fill(chosen, -1).amax(1);
    EXPECT_TRUE(worst.ge(best).all().item<bool>());
  }
}

TEST_F(MoeLayerTest, VisitsAreSortedByExpertAndThenByToken) {
  const Case c = make_case(/*normalise=*/false, 3, Visits::kAnywhere);
  const Routing routing = run(c).routing;
  const at::Tensor visits = routing.visits_M.cpu().to(at::kLong);
  const at::Tensor experts = routing.experts_NK.flatten().cpu().index_select(0, visits);
  const at::Tensor order = experts * kTokens * 3 + visits;
  EXPECT_TRUE(order.slice(0, 1).gt(order.slice(0, 0, -1)).all().item<bool>());
  EXPECT_TRUE(at::equal(
      visits.index_select(0, routing.places_NK.flatten().cpu().to(at::kLong)), at::arange(kTokens * 3, at::kLong)));
}

TEST_F(MoeLayerTest, NewGradientsAreOverwrittenAndOthersAddedTo) {
  const Case c = make_case(/*normalise=*/true, 2, Visits::kOneWithout);
  const Result expected = run(c);
  expect_equal(run(c, /*fill=*/std::nullopt), expected, 1e-15);
  const Result added = run(c, /*fill=*/0.5);
  EXPECT_LT(relative_error(added.grads.gate_up - 0.5, expected.grads.gate_up), 1e-12);
  EXPECT_LT(relative_error(added.grads.down - 0.5, expected.grads.down), 1e-12);
}

// Bits do not depend on the run; in bf16, on CUDA, all products are those of the grouped kernel.
TEST_F(MoeLayerTest, EveryRunHasTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c = make_case(/*normalise=*/true, 2, Visits::kAnywhere, dtype);
    const Result first = run(c);
    for (int i = 0; i < 3; ++i) {
      const Result again = run(c);
      EXPECT_TRUE(at::equal(again.y_NH, first.y_NH));
      EXPECT_TRUE(at::equal(again.dx_NH, first.dx_NH));
      EXPECT_TRUE(at::equal(again.grads.router_EH, first.grads.router_EH));
      EXPECT_TRUE(at::equal(again.grads.gate_up, first.grads.gate_up));
      EXPECT_TRUE(at::equal(again.grads.down, first.grads.down));
    }
  }
}

// The router sees the same operands as the fp64 computation, so that both choose the same experts; bf16 rounds a few
// times between input and output.
TEST_F(MoeLayerTest, LowPrecisionIsNearFp64) {
  for (const Visits visits : {Visits::kAnywhere, Visits::kOneWithout, Visits::kAllToOne}) {
    for (const bool overwrites : {false, true}) {
      const Case c = make_case(/*normalise=*/true, 2, visits, at::kBFloat16);
      const Result actual = overwrites ? run(c, std::nullopt) : run(c);
      const Result expected = reference(c);
      const auto error = [](const at::Tensor& found, const at::Tensor& wanted) {
        return ((found.to(at::kDouble) - wanted).norm() / wanted.norm()).item<double>();
      };
      EXPECT_LT(error(actual.y_NH, expected.y_NH), 6e-3);
      EXPECT_LT(error(actual.dx_NH, expected.dx_NH), 6e-3);
      EXPECT_LT(error(actual.grads.router_EH, expected.grads.router_EH), 4e-2); // differences of larger numbers
      EXPECT_LT(error(actual.grads.gate_up, expected.grads.gate_up), 1e-2);
      EXPECT_LT(error(actual.grads.down, expected.grads.down), 1e-2);
    }
  }
}

TEST_F(MoeLayerTest, Float8ExpertsAreNearThoseOfTheRoundedWeights) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const Case c = make_case(/*normalise=*/true, 2, Visits::kOneWithout, dtype);
  MlpParams params = c.weights.params();
  Case rounded = c;
  for (auto& [projection, weight] :
       {std::pair{&params.gate_up, &rounded.weights.gate_up}, {&params.down, &rounded.weights.down}}) {
    const Float8Rows rows = float8_rows(projection->weight_OI);
    projection->weight_OI = rows.values_RC;
    projection->scale_O = rows.scale_R;
    *weight = float8_to_float(rows);
  }
  SublayerInput input = input_of(c);
  MlpSaved saved;
  mlp_layer_rebuild({c.spec}, params, input, saved);
  const at::Tensor y_NH = mlp_layer_output({c.spec}, params, saved);
  const at::Tensor expected = reference(rounded).y_NH;
  const double error = ((y_NH.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 1e-3) << "activations were rounded";
}

// A plan simulates the layer, whose shapes may not depend on the routing.
TEST_F(MoeLayerTest, ASimulationSavesTensorsOfTheSameShapes) {
  const Case c = make_case(/*normalise=*/true, 2, Visits::kAnywhere, at::kFloat);
  MlpSaved saved, simulated;
  SublayerInput input = input_of(c);
  mlp_layer_rebuild({c.spec}, c.weights.params(), input, saved);
  const device::Simulation simulation(test_device().type());
  const auto meta = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::empty(tensor.sizes(), tensor.options().device(at::kMeta)) : at::Tensor();
  };
  SublayerInput meta_input = {.x_NH = meta(c.x_NH), .norm_H = {}, .eps = 1e-6};
  mlp_layer_rebuild({c.spec}, c.weights.map(meta).params(), meta_input, simulated);
  const auto found = simulated.all(), expected = saved.all();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i]->defined(), expected[i]->defined()) << i;
    if (!found[i]->defined()) {
      continue; // of a shared expert
    }
    EXPECT_EQ(found[i]->sizes(), expected[i]->sizes()) << i;
    EXPECT_EQ(found[i]->scalar_type(), expected[i]->scalar_type()) << i;
    EXPECT_EQ(found[i]->storage().nbytes(), expected[i]->storage().nbytes()) << i;
  }
}

} // namespace
} // namespace distill::models
