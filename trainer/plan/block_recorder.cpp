#include "trainer/plan/block_recorder.h"

#include "trainer/device/memory_tracker.h"

namespace distill::plan {

using models::BlockSaved;

// Everything that the allocations of a pass depend on.
struct BlockRecorder::Key {
  models::LayerKind kind;
  at::ScalarType dtype = at::kFloat;
  int64_t tokens = 0;
  int64_t hidden = 0;
  int64_t seq_len = 0;
  int64_t tile_tokens = 0;
  bool packed = false;
  bool backward = false;
  bool saves = false; // forward: saves tensors for backward; backward: has all of them, not only the input
  bool has_attention = false; // backward: has attention's output
  bool matrices_are_new = false; // backward: the weight gradients are uninitialised
  // Of both passes. Blocks of one model may differ here, and a step's shadow runs all of them without float8.
  std::vector<bool> float8; // by projection: whether it runs in float8, and whether its weight's gradient does
  bool balances = false; // a router's part in the loss
  bool counted = false; // what their rounding loses
  // By projection: the rows of its adapters' A and of each B, after whether elements of their input are dropped.
  std::vector<int64_t> adapters;
  bool trains_weights = false; // backward: whether any weight, and not adapters alone, has a gradient
  bool trains_norms = false;

  bool operator==(const Key&) const = default;
};

// One pass: its allocations in order, and which of them belong to tensors that it returns.
class BlockRecorder::Recording {
 public:
  explicit Recording(Key key) : key_(std::move(key)) {}

  const Key& key() const {
    return key_;
  }

  // Runs `pass` while its allocations are recorded. The pass returns its result and writes the tensors that it saves to
  // `saved`; null: it saves none. Releases of `inputs` are recorded too.
  template <typename Pass>
  at::Tensor record(
      device::Simulation& simulation, const at::Tensor& x, BlockSaved* saved, const std::vector<const void*>& inputs,
      const Pass& pass) {
    simulation.record(&trace_);
    at::Tensor result = pass();
    simulation.record(nullptr);
    is_tensor_.assign(trace_.blocks.size(), -1);
    describe(result, x);
    if (saved != nullptr) {
      for (const at::Tensor* tensor : saved->all()) {
        describe(*tensor, x);
      }
    }
    for (device::AllocationTrace::Event& event : trace_.events) {
      const auto input = std::find(inputs.begin(), inputs.end(), event.outer);
      if (event.outer != nullptr && input != inputs.end()) {
        event.outer_input = input - inputs.begin();
      }
    }
    return result;
  }

  // Repeats the recorded allocations and releases. `inputs`: those of record(), as tensors that the pass may release.
  at::Tensor replay(
      device::Simulation& simulation, const at::Tensor& x, BlockSaved* saved,
      const std::vector<at::Tensor*>& inputs) const {
    std::vector<at::Tensor> tensors(tensors_.size());
    std::vector<const void*> blocks(trace_.blocks.size());
    for (const device::AllocationTrace::Event& event : trace_.events) {
      if (event.slot < 0) {
        if (event.outer_input >= 0) {
          inputs[static_cast<size_t>(event.outer_input)]->reset();
        }
        continue;
      }
      const auto slot = static_cast<size_t>(event.slot);
      if (event.bytes == 0) {
        simulation.release(blocks[slot]);
      } else if (is_tensor_[slot] >= 0) {
        const Shape& shape = tensors_[static_cast<size_t>(is_tensor_[slot])];
        tensors[static_cast<size_t>(is_tensor_[slot])] =
            at::empty_strided(shape.sizes, shape.strides, x.options().dtype(shape.dtype));
      } else {
        blocks[slot] = simulation.allocate(event.bytes);
      }
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].is_x) {
        tensors[i] = x;
      }
    }
    if (saved != nullptr) {
      const std::vector<at::Tensor*> places = saved->all();
      for (size_t i = 0; i < places.size(); ++i) {
        *places[i] = std::move(tensors[i + 1]);
      }
    }
    return std::move(tensors[0]);
  }

 private:
  struct Shape { // a tensor that the pass returns
    bool is_x = false; // it is the block's input
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
  };

  void describe(const at::Tensor& tensor, const at::Tensor& x) {
    Shape& shape = tensors_.emplace_back();
    if (!tensor.defined()) {
      return;
    }
    shape.is_x = tensor.is_alias_of(x);
    shape.sizes = tensor.sizes().vec();
    shape.strides = tensor.strides().vec();
    shape.dtype = tensor.scalar_type();
    const auto& blocks = trace_.blocks;
    const auto found = std::find(blocks.rbegin(), blocks.rend(), tensor.storage().data());
    TORCH_INTERNAL_ASSERT(shape.is_x || found != blocks.rend(), "a block returned a tensor that it did not make");
    if (!shape.is_x) {
      is_tensor_[static_cast<size_t>(blocks.rend() - found) - 1] = static_cast<int64_t>(tensors_.size()) - 1;
    }
  }

  Key key_;
  device::AllocationTrace trace_;
  std::vector<Shape> tensors_; // the result, then BlockSaved::all()
  std::vector<int64_t> is_tensor_; // for each slot: an index into tensors_; -1: a temporary
};

BlockRecorder::BlockRecorder() = default;
BlockRecorder::~BlockRecorder() = default;

BlockRecorder::Recording* BlockRecorder::find(const Key& key) {
  const auto found = std::find_if(
      recordings_.begin(), recordings_.end(), [&key](const Recording& recording) { return recording.key() == key; });
  return found == recordings_.end() ? nullptr : &*found;
}

models::BlockFunctions BlockRecorder::functions(device::Simulation& simulation) {
  const auto key_of = [](const models::BlockContext& context, const models::BlockParams& params, const at::Tensor& x_NH,
                         bool backward, bool saves, bool has_attention, bool matrices_are_new) {
    Key key{
        context.kind,
        x_NH.scalar_type(),
        x_NH.size(0),
        x_NH.size(1),
        context.seq.seq_len,
        context.tile_tokens,
        context.seq.packed,
        backward,
        saves,
        has_attention,
        matrices_are_new,
        {},
        /*balances=*/context.balance != nullptr};
    for (const auto& [name, projection] : params.projections()) {
      key.float8.insert(key.float8.end(), {projection->is_float8(), projection->float8_weight_gradient});
      key.counted = key.counted || projection->float8_counts.front().defined();
      const models::Adapter& adapter = projection->adapter;
      key.adapters.push_back(adapter.dropout.probability > 0 ? 1 : 0);
      key.adapters.push_back(adapter.exists() ? adapter.a_RI.size(0) : 0);
      for (const models::Adapter::Module& module : adapter.modules) {
        key.adapters.insert(key.adapters.end(), {module.b_OR.size(0), module.b_OR.size(1)});
      }
    }
    return key;
  };
  models::BlockFunctions functions;
  functions.forward = [this, &simulation, key_of](
                          const models::BlockContext& context, const models::BlockParams& params,
                          const at::Tensor& x_NH, BlockSaved* saved) {
    const Key key = key_of(
        context, params, x_NH, /*backward=*/false, saved != nullptr, /*has_attention=*/false,
        /*matrices_are_new=*/false);
    if (const Recording* recording = find(key)) {
      return recording->replay(simulation, x_NH, saved, {});
    }
    return recordings_.emplace_back(key).record(
        simulation, x_NH, saved, {}, [&] { return models::block_forward(context, params, x_NH, saved); });
  };
  functions.backward = [this, &simulation, key_of](
                           const models::BlockContext& context, const models::BlockParams& params,
                           const at::Tensor& dy_NH, BlockSaved saved, models::BlockParams& grads) {
    const auto products = grads.projections();
    const bool are_new =
        std::any_of(products.begin(), products.end(), [](const auto& product) { return product.second->is_new; });
    Key key = key_of(context, params, dy_NH, /*backward=*/true, !saved.input_only(), saved.has_attention(), are_new);
    key.trains_weights = std::any_of(
        products.begin(), products.end(), [](const auto& product) { return product.second->weight_OI.defined(); });
    key.trains_norms = grads.attn_norm_H.defined() || grads.mlp_norm_H.defined();
    if (const Recording* recording = find(key)) {
      return recording->replay(simulation, dy_NH, nullptr, saved.all());
    }
    std::vector<const void*> inputs;
    for (const at::Tensor* tensor : saved.all()) {
      inputs.push_back(tensor->defined() ? tensor->storage().data() : nullptr);
    }
    return recordings_.emplace_back(key).record(simulation, dy_NH, nullptr, inputs, [&] {
      return models::block_backward(context, params, dy_NH, std::move(saved), grads);
    });
  };
  return functions;
}

} // namespace distill::plan
