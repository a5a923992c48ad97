#include "trainer/plan/block_time.h"

#include <algorithm>
#include <string>

#include "trainer/models/tiles.h"
#include "trainer/plan/attention_time.h"
#include "trainer/plan/link_time.h"

namespace distill::plan {
namespace {

constexpr double kKernelsForward = 12; // of a block
constexpr double kKernelsBackward = 26;

// The speed of products of experts as a share of that of one product of as many operations: 563 of 770 and 471 of 767
// TFLOP/s for the shapes of Qwen3-30B-A3B (libtorch 2.11, bf16, one H100).
constexpr double kGroupedSpeed = 0.7;
// Sorting the tokens of a layer by expert, seconds for each of their visits to an expert: 0.13 ms for 65536 there.
constexpr double kSortSeconds = 2e-9;

// The speed of float8 products whose parts are added in fp32, of weights' gradients, as a share of that of the others:
// 1013 to 1289 of 1216 to 1413 TFLOP/s (docs/float8.md, H200).
constexpr double kSlowAccumulation = 0.87;

// Whether a matrix of a block is one of its MLP's, which may be computed in tiles.
bool is_of_mlp(const models::ParamLayout& param) {
  return param.name == "router" || param.name == "gate_up" || param.name == "down" || param.name.starts_with("shared_");
}

// [rows, inner] x [inner, columns].
double product(const Machine& machine, double rows, double inner, double columns, double element, double out_element) {
  return 2 * rows * inner * columns / machine.matmul_flops +
      ((rows * inner + inner * columns) * element + rows * columns * out_element) / machine.memory_bytes;
}

// The first layer of a kind; its layout is that of all others.
int64_t first_layer(const models::ModelConfig& config, int64_t kind) {
  return std::find(config.layers.begin(), config.layers.end(), kind) - config.layers.begin();
}

// Share of the blocks of a kind in which the product is in float8.
double float8_share(const models::ModelConfig& config, int64_t kind, const std::string& product) {
  int64_t float8 = 0;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    float8 += config.layers[static_cast<size_t>(block)] == kind && config.float8.contains(block, product) ? 1 : 0;
  }
  return static_cast<double>(float8) / static_cast<double>(config.count_of(kind));
}

// Seconds of one of a block's products, the mean over the blocks of its kind, of which `share` run it in float8: such a
// product reads operands of one byte. `speed`: of the float8 products, as a share of their usual one.
double block_product(
    const Machine& machine, double share, double rows, double inner, double columns, double element, double out_element,
    double speed = 1) {
  Machine in_float8 = machine;
  in_float8.matmul_flops = // 0: share is, too
      machine.float8_flops > 0 ? speed * machine.float8_flops : machine.matmul_flops;
  return share * product(in_float8, rows, inner, columns, 1, out_element) +
      (1 - share) * product(machine, rows, inner, columns, element, out_element);
}

Machine slower_products(Machine machine, double speed) {
  machine.matmul_flops *= speed;
  machine.float8_flops *= speed;
  return machine;
}

// The adapters of a block's products, the mean over the blocks of a kind.
struct AdapterTime {
  double forward = 0, backward = 0; // seconds
  double numel = 0; // of what is trained of a block
};

AdapterTime adapter_time(const RunShape& shape, const Machine& machine, const ModelRun& run, int64_t kind) {
  const models::ModelConfig& config = run.config;
  AdapterTime time;
  if (!config.adapter) {
    return time;
  }
  const auto tokens = static_cast<double>(run.tokens);
  const double e = element_bytes(run.dtype);
  const double dropped = config.adapter->dropout > 0 ? 2 : 0; // times that the input is read or written for it
  for (const models::UnitLayout& layout : models::trained_layouts(config)) {
    if (layout.block < 0 || config.layers[static_cast<size_t>(layout.block)] != kind) {
      continue;
    }
    time.numel += static_cast<double>(layout.numel);
    for (const models::ParamLayout& param : layout.params) {
      if (!param.is_matrix) {
        continue;
      }
      const auto rows = static_cast<double>(param.group_rows()), columns = static_cast<double>(param.shape[1]);
      const double visits = tokens * static_cast<double>(param.groups_per_token);
      const bool grouped = param.groups > 1;
      const Machine at_speed = grouped ? slower_products(machine, kGroupedSpeed) : machine;
      const double other_groups = static_cast<double>(param.groups - 1) * rows * columns / machine.memory_bytes;
      // x A^T, or B's product, which reads what it adds to; a grouped one is written first, and then added. Backward,
      // x A^T is made again, and each of the two has the gradients of its input and of its weight, the first of which
      // is added to another one, or made twice; of experts the second is made in the compute dtype, and then added.
      const double product_seconds =
          product(at_speed, visits, columns, rows, e, e) + other_groups * e + machine.launch_seconds;
      const double weight = product(at_speed, rows, visits, columns, e, 8) + other_groups * (8 + 2 * e) +
          (grouped ? 2 : 1) * machine.launch_seconds;
      const double added = (grouped ? 3 : 1) * visits * e / machine.memory_bytes;
      time.forward += product_seconds + (param.adapter ? added * rows : added * dropped * columns);
      time.backward += 2 * product_seconds + weight + (param.adapter ? 0 : added * (1 + 2 * dropped) * columns);
    }
  }
  const auto blocks = static_cast<double>(config.count_of(kind));
  return {time.forward / blocks, time.backward / blocks, time.numel / blocks};
}

BlockTime block_time(const RunShape& shape, const Machine& machine, const ModelRun& run, int64_t kind_index) {
  const models::ModelConfig& config = run.config;
  const models::LayerKind& kind = config.kinds[static_cast<size_t>(kind_index)];
  const models::UnitLayout layout = models::block_layout(config, first_layer(config, kind_index));
  const auto tokens = static_cast<double>(run.tokens);
  const double e = element_bytes(run.dtype);
  const auto hidden = static_cast<double>(config.hidden_size),
             ffn = static_cast<double>(kind.mlp.width() + (kind.mlp.experts ? kind.mlp.experts->shared_ffn : 0));
  // What the projection of q, k and v makes, with the gates of a delta rule.
  const auto qkv = static_cast<double>(
      kind.delta ? kind.delta->conv_channels() + kind.delta->value_width() : kind.attention.qkv_width());
  BlockTime time;
  // The backward pass has two products for each product of the forward pass. The weight gradient is written to an fp32
  // buffer by the first micro-batch and added to it by the others; by each of them, where it is then rounded.
  const double gradient_traffic =
      shape.rounds_gradients() ? 4 : 8 - 4 / static_cast<double>(std::max<int64_t>(1, shape.micro_batches));
  const auto tiles = static_cast<double>(models::tile_count(run.tokens, shape.config.memory.tile_tokens));
  double products = 0, last = 0,
         backward = 0; // of the forward pass up to the last product, of that, of the backward pass
  double mlp = 0; // the part of `products` that is the MLP's
  bool last_is_of_mlp = false;
  for (const models::ParamLayout& param : layout.params) {
    if (!param.is_matrix || param.shape.size() != 2) { // the convolution's is counted with the rule
      continue;
    }
    const auto columns = static_cast<double>(param.group_rows()), inner = static_cast<double>(param.shape[1]);
    const double rows = tokens * static_cast<double>(param.groups_per_token);
    const double other_groups = static_cast<double>(param.groups - 1) * inner * columns; // their elements
    const Machine at_speed = param.groups > 1 ? slower_products(machine, kGroupedSpeed) : machine;
    const double share = float8_share(config, kind_index, param.name);
    products += last;
    mlp += last_is_of_mlp ? last : 0;
    last_is_of_mlp = is_of_mlp(param);
    // Every tile reads the weight, and adds to its gradient.
    const double in_other_tiles = last_is_of_mlp ? (tiles - 1) * static_cast<double>(param.numel()) : 0;
    last = block_product(at_speed, share, rows, inner, columns, e, e) +
        (other_groups + in_other_tiles) * e / machine.memory_bytes;
    // In float8 the gradient of the output is rounded, and the weight transposed. For the weight's gradient the rounded
    // gradient is transposed, and the input is read twice and rounded. The gradient of experts' inputs is a product in
    // the compute dtype, of a copy of their weights that is written, scaled and read.
    const bool grouped = param.groups > 1;
    const double gradient_share = config.float8_weight_gradients ? share : 0;
    const double rounding = share *
            (grouped ? static_cast<double>(param.numel()) * (1 + 3 * e)
                     : rows * columns * (e + 1) + 2 * inner * columns) +
        gradient_share * (rows * columns * 2 + rows * inner * (2 * e + 1));
    // The gradients of experts' weights are made in the compute dtype, and then added.
    const double weights = other_groups * (2 * e + gradient_traffic) + (grouped ? other_groups * 2 * e : 0) +
        in_other_tiles * (e + 8 + 2 * share + (grouped ? 2 * e : 0));
    const double weight_gradient = config.adapter
        ? 0
        : block_product(at_speed, gradient_share, inner, rows, columns, e, gradient_traffic, kSlowAccumulation) +
            weights / machine.memory_bytes;
    backward += block_product(at_speed, grouped ? 0 : share, rows, columns, inner, e, e) + weight_gradient +
        (rounding + (config.adapter ? in_other_tiles * e : 0)) / machine.memory_bytes;
  }
  double down = last + tokens * (3 * ffn + 2 * hidden) * e / machine.memory_bytes;
  if (kind.mlp.experts) {
    // A token's rows are copied to its experts and added up again; backward, the same twice.
    const double visits = tokens * static_cast<double>(kind.mlp.experts->per_token);
    const double copies = visits * 3 * hidden * e / machine.memory_bytes;
    products += copies + visits * kSortSeconds;
    backward += 2 * copies + 4 * tokens * ffn * e / machine.memory_bytes;
    down += (visits * hidden + 2 * tokens * ffn) * e / machine.memory_bytes;
  }
  const AdapterTime adapters = adapter_time(shape, machine, run, kind_index);
  products += adapters.forward;
  backward += adapters.backward;
  const AttentionTime attention = kind.delta ? delta_time(*kind.delta, machine, tokens, e)
                                             : attention_time(kind.attention, machine, tokens, run.seq_len);
  // q and k are normalised and rotated, an output gate is read with the output and the product is written.
  const auto rotated = static_cast<double>(
      kind.delta
          ? 0
          : kind.attention.query_width() * (kind.attention.output_gate ? 3 : 2) / 2 + kind.attention.key_value_width());
  const double elementwise = tokens * (2 * hidden + 2 * rotated + 5 * hidden) * e;
  time.rebuild =
      products + attention.forward + elementwise / machine.memory_bytes + kKernelsForward * machine.launch_seconds;
  time.forward = time.rebuild + down;
  time.rebuild -= shape.blocks().recomputes_attention ? 0 : attention.forward;
  if (tiles > 1) { // the backward pass computes the MLP again, whatever the policy is
    time.rebuild -= mlp;
    backward += mlp + (kind.mlp_norms.after ? down : 0) + 4 * tokens * hidden * e / machine.memory_bytes +
        (tiles - 1) * kKernelsBackward * machine.launch_seconds;
  }
  time.backward = backward + attention.backward +
      tokens * (6 * ffn + 14 * hidden + 4 * qkv) * e / machine.memory_bytes + kKernelsBackward * machine.launch_seconds;
  time.reduce = unit_reduce(shape, machine, config.adapter ? adapters.numel : static_cast<double>(layout.numel));
  return time;
}

} // namespace

std::vector<BlockTime> block_times(const RunShape& shape, const Machine& machine, const ModelRun& run) {
  std::vector<BlockTime> times(run.config.kinds.size());
  for (int64_t kind = 0; kind < static_cast<int64_t>(times.size()); ++kind) {
    if (run.config.count_of(kind) > 0) {
      times[static_cast<size_t>(kind)] = block_time(shape, machine, run, kind);
    }
  }
  return times;
}

double element_bytes(at::ScalarType dtype) {
  return static_cast<double>(c10::elementSize(dtype));
}

} // namespace distill::plan
