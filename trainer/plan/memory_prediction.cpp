#include "trainer/plan/step_model.h"

#include "losses/rows.h"
#include "trainer/optim/host_state.h"
#include "trainer/plan/block_model.h"
#include "trainer/plan/units_model.h"
#include "trainer/sharding/activation_store.h"

namespace distill::plan {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFloat = 4;
constexpr int64_t kInt64 = 8;

// cuBLAS's scratch on Hopper, taken from the allocator at the first product.
constexpr int64_t kBlasWorkspace = 32 * kMiB;
// What an H200 had in use beside the allocator after a run's last step: driver, kernels' code, cuBLAS and cuDNN
// handles.
constexpr int64_t kContext = 780 * kMiB;
// The same on two GPUs, less kContext, for each communicator. NCCL's buffers account for it: 9.2 MiB for each
// connection (4 simple, 4.7 LL128, 0.5 LL), up to 32 channels, ring and tree.
constexpr int64_t kCommunicator = 577 * kMiB;

class StepModel {
 public:
  explicit StepModel(const RunShape& shape);
  MemoryPrediction run();

 private:
  BlockShape block_shape(const models::ModelConfig& config, at::ScalarType dtype) const;
  Buffer make(Category category, int64_t bytes) {
    return timeline_.allocate(category, bytes);
  }
  void hold(Category category, int64_t bytes) { // for the life of the run
    static_.push_back(make(category, bytes));
  }
  void build();
  void micro_batch(bool last);
  void embed(UnitsModel& model);
  Buffer teacher_forward();
  // What the blocks keep goes to `kept`; returns the last block's output.
  Buffer student_forward(std::vector<KeptBuffers>& kept);
  void student_backward(std::vector<KeptBuffers> kept, Buffer dhidden, Buffer norm_x, Buffer norm_rstd, bool last);
  KeptBuffers fetch(int64_t block);
  void optimizer();

  const RunShape& shape_;
  Timeline timeline_;
  BlockShape student_block_;
  BlockModel blocks_;
  std::vector<Buffer> static_;
  Buffer angles_[2]; // of the last micro-batch; the training pass holds them
  std::unique_ptr<WeightSlotsModel> weight_slots_;
  std::unique_ptr<GradientSlotsModel> gradient_slots_;
  UnitsModel student_;
  std::unique_ptr<UnitsModel> teacher_;
};

StepModel::StepModel(const RunShape& shape)
    : shape_(shape),
      timeline_(shape.cuda ? caching_allocator() : exact_allocator()),
      student_block_(block_shape(shape.student, shape.student_dtype)),
      blocks_(timeline_, student_block_),
      student_(timeline_, shape, shape.student, shape.student_dtype, shape.shard, /*trainable=*/true) {}

BlockShape StepModel::block_shape(const models::ModelConfig& config, at::ScalarType dtype) const {
  return {
      .config = config,
      .tokens = shape_.tokens(),
      .batch = shape_.batch,
      .seq_len = shape_.seq_len,
      .element = static_cast<int64_t>(c10::elementSize(dtype)),
      .cuda = shape_.cuda,
      .packed = shape_.packed,
      .threads = shape_.threads};
}

// In the order of Trainer::read_inputs.
void StepModel::build() {
  student_.load();
  if (shape_.teacher) {
    teacher_ = std::make_unique<UnitsModel>(
        timeline_, shape_, *shape_.teacher, shape_.teacher_dtype, shape_.shard_teacher ? shape_.shard : 1,
        /*trainable=*/false);
    teacher_->load();
  }
  if (shape_.ranks() > 1) {
    const bool gathers_teacher = teacher_ && shape_.shard_teacher;
    weight_slots_ = std::make_unique<WeightSlotsModel>(
        timeline_, shape_.prefetch + 1,
        std::max(student_.largest_block_bytes(), gathers_teacher ? teacher_->largest_block_bytes() : 0));
    gradient_slots_ = std::make_unique<GradientSlotsModel>(timeline_, shape_.bf16_reduce, shape_.cuda);
    student_.use_slots(weight_slots_.get(), gradient_slots_.get());
    if (gathers_teacher) {
      teacher_->use_slots(weight_slots_.get(), nullptr);
    }
  }
  // Rope tables of both models, fp32 [positions, head_dim / 2], cos and sin.
  for (const models::ModelConfig* config : {&shape_.student, shape_.teacher ? &*shape_.teacher : nullptr}) {
    if (config != nullptr) {
      hold(Category::kWorkspace, shape_.seq_len * config->head_dim / 2 * kFloat);
      hold(Category::kWorkspace, shape_.seq_len * config->head_dim / 2 * kFloat);
    }
  }
  if (shape_.optimizer_on_host) {
    int64_t largest = 0;
    for (int64_t unit = 0; unit < student_.num_units(); ++unit) {
      largest = std::max(largest, student_.shard_numel(unit));
    }
    for (int64_t i = 0; i < 3 * optim::HostState::kStages; ++i) {
      hold(Category::kStaging, optim::HostState::stage_numel(largest) * kFloat);
    }
  } else {
    for (int64_t unit = 0; unit < student_.num_units(); ++unit) {
      hold(Category::kMoments, student_.shard_numel(unit) * kFloat);
      hold(Category::kMoments, student_.shard_numel(unit) * kFloat);
    }
  }
}

void StepModel::embed(UnitsModel& model) {
  const int64_t unit = model.embedding_unit();
  model.weights(unit);
  model.prefetch(model.block_unit(0));
}

Buffer StepModel::teacher_forward() {
  const models::ModelConfig& config = *shape_.teacher;
  const BlockShape teacher = block_shape(config, shape_.teacher_dtype);
  BlockModel block(timeline_, teacher);
  const Buffer cos = block.statistics(config.head_dim / 2);
  const Buffer sin = block.statistics(config.head_dim / 2);
  embed(*teacher_);
  Buffer x = block.hidden();
  teacher_->release(teacher_->embedding_unit());
  if (teacher_->embedding_unit() != teacher_->head_unit()) {
    teacher_->retire(teacher_->embedding_unit());
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    teacher_->weights(teacher_->block_unit(i));
    teacher_->prefetch_after(i, &student_);
    x = block.forward(/*kept=*/nullptr);
    teacher_->release(teacher_->block_unit(i));
  }
  teacher_->weights(teacher_->head_unit());
  Buffer hidden = block.hidden(Category::kHidden);
  const Buffer rstd = block.statistics(1);
  teacher_->weights(teacher_->head_unit()); // the loss head has it next
  return hidden;
}

Buffer StepModel::student_forward(std::vector<KeptBuffers>& kept) {
  {
    Buffer cos = blocks_.statistics(shape_.student.head_dim / 2);
    Buffer sin = blocks_.statistics(shape_.student.head_dim / 2);
    angles_[0] = std::move(cos);
    angles_[1] = std::move(sin);
  }
  embed(student_);
  Buffer x = blocks_.hidden();
  student_.release(student_.embedding_unit());
  if (student_.embedding_unit() != student_.head_unit()) {
    student_.retire(student_.embedding_unit());
  }
  KeptBuffers leaving; // on its way to the host
  for (int64_t i = 0; i < shape_.student.num_layers; ++i) {
    const models::ActivationPolicy policy = shape_.policies[i];
    KeptBuffers all;
    student_.weights(student_.block_unit(i));
    student_.prefetch_after(i, nullptr);
    Buffer y = blocks_.forward(models::keeps_input_only(policy) ? nullptr : &all);
    student_.release(student_.block_unit(i));
    all.x = std::move(x);
    all.label(Category::kActivations);
    KeptBuffers& place = kept.emplace_back();
    if (models::is_offloaded(policy)) {
      leaving = {};
      leaving = std::move(all);
    } else {
      place = std::move(all);
    }
    x = std::move(y);
  }
  return x;
}

void StepModel::micro_batch(bool last) {
  const int64_t tokens = shape_.tokens();
  std::vector<Buffer> batch;
  if (shape_.cuda) { // token ids, positions, targets, boundaries
    for (int64_t i = 0; i < 3; ++i) {
      batch.push_back(make(Category::kWorkspace, tokens * kInt64));
    }
    batch.push_back(make(Category::kWorkspace, (shape_.batch + 1) * 4));
  }
  timeline_.enter(MemoryPhase::kTeacher);
  Buffer teacher_hidden = teacher_ ? teacher_forward() : Buffer();

  timeline_.enter(MemoryPhase::kForward);
  std::vector<KeptBuffers> kept;
  Buffer x = student_forward(kept);
  student_.weights(student_.head_unit());
  Buffer hidden = blocks_.hidden(Category::kHidden);
  Buffer norm_rstd = blocks_.statistics(1, Category::kHidden);
  x.label(Category::kHidden); // the final norm keeps it
  student_.release(student_.head_unit());

  timeline_.enter(MemoryPhase::kHead);
  Buffer dhidden = blocks_.hidden(Category::kHidden);
  student_.gradient(student_.head_unit());
  student_.weights(student_.head_unit());
  {
    Buffer rows;
    {
      const Buffer arena = make(Category::kHead, shape_.head.arena_bytes);
      // Which rows count, and their targets.
      const Buffer index = make(Category::kHead, shape_.gathers_rows ? tokens * kInt64 : 0);
      const Buffer targets = make(Category::kHead, shape_.gathers_rows ? tokens * kInt64 : 0);
      rows = make(Category::kHead, losses::kNumRows * tokens * kFloat);
      { const Buffer beside = make(Category::kHead, shape_.head.bytes - shape_.head.arena_bytes); }
      const Buffer all_rows = make(Category::kHead, shape_.gathers_rows ? losses::kNumRows * tokens * kFloat : 0);
    }
    teacher_hidden.reset();
    hidden.reset();
    student_.release(student_.head_unit());
    if (teacher_) {
      teacher_->release(teacher_->head_unit());
      teacher_->retire(teacher_->head_unit());
    }
  }
  timeline_.enter(MemoryPhase::kBackward);
  student_backward(std::move(kept), std::move(dhidden), std::move(x), std::move(norm_rstd), last);
}

// The tensors of a block that comes back from the host; nothing for one that stayed.
KeptBuffers StepModel::fetch(int64_t block) {
  KeptBuffers kept;
  if (block < 0 || !models::is_offloaded(shape_.policies[block])) {
    return kept;
  }
  std::vector<Buffer*> places{&kept.x, &kept.attn_rstd, &kept.qkv};
  if (shape_.student.qk_norm) {
    places.insert(places.end(), {&kept.q_rstd, &kept.k_rstd});
  }
  places.insert(places.end(), {&kept.attn, &kept.lse, &kept.mid, &kept.mlp_rstd, &kept.gate_up});
  const std::vector<int64_t> bytes = models::block_kept_bytes(
      shape_.student, shape_.tokens(), student_block_.element, models::keeps_input_only(shape_.policies[block]));
  for (size_t i = 0; i < bytes.size(); ++i) {
    *places[i] = make(Category::kActivations, bytes[i]);
  }
  return kept;
}

void StepModel::student_backward(
    std::vector<KeptBuffers> kept, Buffer dhidden, Buffer norm_x, Buffer norm_rstd, bool last) {
  const int64_t head = student_.head_unit();
  student_.gradient(head);
  student_.weights(head);
  Buffer dx = blocks_.hidden();
  { const Buffer partials = blocks_.norm_partials(shape_.student.hidden_size); }
  norm_x.reset();
  norm_rstd.reset();
  dhidden.reset();
  student_.release(head);
  student_.retire(head);
  if (head != student_.embedding_unit()) {
    student_.reduce(head, last);
  }
  KeptBuffers arriving;
  for (int64_t i = shape_.student.num_layers - 1; i >= 0; --i) {
    const int64_t unit = student_.block_unit(i);
    student_.weights(unit);
    if (i + 1 == shape_.student.num_layers) {
      arriving = fetch(i);
    }
    KeptBuffers own = std::move(models::is_offloaded(shape_.policies[i]) ? arriving : kept.back());
    kept.pop_back();
    student_.prefetch_before(i);
    arriving = fetch(i - 1);
    student_.gradient(unit);
    dx = blocks_.backward(std::move(own), models::keeps_input_only(shape_.policies[i]));
    student_.release(unit);
    student_.reduce(unit, last);
  }
  student_.gradient(student_.embedding_unit());
  {
    const int64_t bytes = shape_.tokens() * kInt64;
    const Buffer sorted = make(Category::kWorkspace, bytes);
    const Buffer order = make(Category::kWorkspace, bytes);
    const Buffer scratch = make(Category::kWorkspace, shape_.cuda ? 2 * bytes : 0);
  }
  student_.reduce(student_.embedding_unit(), last);
}

void StepModel::optimizer() {
  timeline_.enter(MemoryPhase::kOptimizer);
  student_.finish_gradients();
  if (teacher_) {
    teacher_->prefetch_first();
  }
  if (shape_.optimizer_on_host) {
    student_.units_updated();
  }
  student_.weights_changed();
  student_.drop_gradients();
}

MemoryPrediction StepModel::run() {
  build();
  MemoryPrediction prediction;
  prediction.static_bytes = timeline_.allocated();
  if (shape_.cuda) {
    hold(Category::kWorkspace, kBlasWorkspace);
    prediction.context = kContext;
    const int64_t communicators = shape_.ranks() == 1 ? 0 : shape_.replicate > 1 ? 4 : 3;
    prediction.communicators = communicators * kCommunicator;
  }
  for (int64_t step = 0; step < 2; ++step) { // the second begins with what the first has gathered ahead
    const int64_t micro_batches = std::min<int64_t>(shape_.micro_batches, 2);
    for (int64_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      micro_batch(last);
      if (!last && teacher_) {
        teacher_->prefetch_first();
      }
    }
    optimizer();
    timeline_.enter(MemoryPhase::kBetween);
  }
  prediction.use = timeline_.use();
  prediction.reserved_peak = timeline_.reserved_peak();
  prediction.host_activations =
      sharding::ActivationStore::host_bytes(shape_.policies, shape_.student, shape_.tokens(), student_block_.element);
  int64_t state = 0; // master weights and moments
  for (int64_t unit = 0; unit < student_.num_units(); ++unit) {
    state += 3 * device::HostSlab::aligned(student_.shard_numel(unit) * kFloat);
  }
  prediction.host_optimizer = shape_.optimizer_on_host ? state : 0;
  prediction.host_checkpoint = shape_.checkpoint_on_host ? state : 0;
  return prediction;
}

} // namespace

MemoryPrediction predict_memory(const RunShape& shape) {
  return StepModel(shape).run();
}

} // namespace distill::plan
