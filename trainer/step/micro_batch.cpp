#include "trainer/step/micro_batch.h"

#include <ATen/ops/argmax.h>

#include "losses/head/products.h"
#include "trainer/config/teachers.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/step/aligned_head.h"
#include "trainer/step/head_plan.h"
#include "trainer/step/loss_head.h"
#include "trainer/teacher/aligned_teacher.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {
namespace {

// The passes of a micro-batch and of the next one: each block is used next in one of them.
void expect(std::vector<sharding::Pass> passes, const std::vector<sharding::Pass>& then) {
  passes.insert(passes.end(), then.begin(), then.end());
  sharding::expect_passes(passes);
}

// What both are: a metric is as exact as where it is least so.
losses::MetricQualities least_exact(losses::MetricQualities a, const losses::MetricQualities& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::max(a[i], b[i]);
  }
  return a;
}

// An evaluation computes all metrics, whatever loss.metrics is.
losses::LossOptions evaluated(losses::LossOptions loss) {
  loss.metrics = losses::MetricSet::kAll;
  return loss;
}

} // namespace

MicroBatchRunner::MicroBatchRunner(
    const config::Config& config, sharding::ModelShards& student, const std::vector<LoadedTeacher>& teachers,
    ActivationMemory memory, models::BlockFunctions block)
    : config_(config),
      student_(student),
      student_ropes_(models::make_rope_tables(student.config().ropes, config.data.seq_len, student.options().device)),
      block_(std::move(block)),
      pass_(student, student_ropes_, std::move(memory.policies), std::move(memory.host), block_),
      phases_(student.options().device) {
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  TORCH_CHECK(configs.size() == teachers.size(), "expected ", configs.size(), " teachers, found ", teachers.size());
  for (size_t i = 0; i < teachers.size(); ++i) {
    teachers_.push_back(
        {make_teacher(configs[i], teachers[i], block_),
         loss_of(configs[i], student.config(), teachers[i].spec),
         onpolicy_loss_of(configs[i], student.config(), teachers[i].spec),
         DroppedMass(teachers[i].spec.vocabulary().dropped),
         teachers[i].spec.vocabulary().columns,
         teachers[i].spec.exists() ? rows_if_beyond(configs[i], teachers[i].spec.model().config) : 0,
         configs[i].spans,
         configs[i].onpolicy_spans,
         {},
         {}});
    const Vocabulary& vocabulary = teachers[i].spec.vocabulary();
    const auto biases = [&](const sharding::ModelShards& model) {
      const auto options = at::TensorOptions().dtype(model.options().compute_dtype).device(model.options().device);
      const double hottest = std::max(configs[i].loss.temperature, configs[i].onpolicy_loss.temperature);
      return excluding_biases(vocabulary.excluded, model.config().vocab_size, hottest, options);
    };
    if (vocabulary.aligned) {
      teachers_.back().bias_V = biases(student);
      teachers_.back().teacher_bias_V = biases(*teachers[i].weights.front());
    }
  }
}

std::vector<sharding::Pass> MicroBatchRunner::next_passes(int64_t teacher) const {
  return teacher < 0 ? std::vector<sharding::Pass>() : teachers_[static_cast<size_t>(teacher)].teacher->passes();
}

std::vector<Prediction> MicroBatchRunner::predict(const data::Batch& batch, const sharding::TokenBatch& tokens) {
  const at::Device device = tokens.tokens_N.device();
  const at::Tensor targets_N = copy_to_device(batch.targets_BS.flatten(), device);
  std::vector<Prediction> predictions = of_batch(batch).teacher->predict(batch, tokens, student_);
  int64_t begin = 0;
  for (auto& [count, head, aligned] : predictions) {
    head.targets_N = targets_N.narrow(0, begin, count);
    head.meta_device = device::kernel_device(device);
    begin += count;
  }
  TORCH_CHECK(begin == targets_N.size(0), "the teacher predicted ", begin, " of ", targets_N.size(0), " tokens");
  return predictions;
}

at::Tensor MicroBatchRunner::run_head(
    const data::Batch& batch, std::vector<Prediction> predictions, at::Tensor hidden_NH,
    const losses::LossOptions& loss, losses::LinearHeadGrads* grads, at::Tensor sums_M) {
  OwnLoss& own = of_batch(batch);
  at::Tensor weight_VH = sharding::lm_head(student_);
  const device::LabelScope label(device::Category::kHead);
  at::Tensor metrics_MN;
  if (predictions.front().aligned) {
    AlignedResult result = run_aligned_head(
        predictions.front(), hidden_NH, weight_VH,
        {loss, batch.on_policy ? own.onpolicy_spans : own.spans, own.bias_V, own.teacher_bias_V}, config_.chunks,
        grads);
    metrics_MN = std::move(result.metrics_MN);
    sums_M.narrow(0, losses::kNumTokenMetrics, metrics::kNumAlignmentSums).add_(result.alignment_A);
  } else {
    metrics_MN = run_loss_head(predictions, hidden_NH, weight_VH, loss, config_.chunks, grads);
  }
  sums_M.narrow(0, 0, losses::kNumTokenMetrics).add_(metrics_MN.sum(1, /*keepdim=*/false, at::kDouble));
  hidden_NH.reset();
  weight_VH.reset();
  for (Prediction& prediction : predictions) {
    prediction = {}; // drops the views of the heads' units
  }
  own.teacher->release(); // first: a head that is the student's too stays in its slot
  student_.release(student_.head_unit());
  if (grads == nullptr) { // with gradients, the backward pass needs the unit once more
    student_.retire(student_.head_unit());
  }
  return metrics_MN;
}

at::Tensor MicroBatchRunner::head_with_gradients(
    const data::Batch& batch, std::vector<Prediction> predictions, at::Tensor hidden_NH, const Sums& sums) {
  const int64_t head = student_.head_unit();
  losses::LinearHeadGrads grads;
  grads.hidden_NH = at::empty_like(hidden_NH);
  device::label(grads.hidden_NH, device::Category::kHidden);
  if (student_.has(head)) {
    const sharding::UnitGradient gradient = student_.gradient(head);
    const models::UnitLayout& layout = student_.unit(head).layout;
    grads.weight_VH = layout.view(gradient.flat, models::lm_head_param(layout.kind)); // undefined: frozen
    grads.accumulate = !gradient.is_new;
  }
  grads.grad_scale = sums.scale;
  run_head(
      batch, std::move(predictions), std::move(hidden_NH), loss_of_batch(batch), &grads,
      sums.metrics_TM[batch.teacher_number]);
  return std::move(grads.hidden_NH); // `grads` holds a view of the head's gradient, which must not outlive this
}

// The teacher runs first, while the student's activations do not exist yet.
void MicroBatchRunner::train(const data::Batch& batch, Sums& sums, int64_t first_sequence, bool last, int64_t next) {
  const sharding::TokenBatch tokens = token_batch(batch, student_.options().device);
  const std::vector<sharding::Pass> own{{&student_}, {&student_, /*backward=*/true}};
  std::vector<sharding::Pass> passes = of_batch(batch).teacher->passes(), then = next_passes(next);
  passes.insert(passes.end(), own.begin(), own.end());
  if (!last) {
    then.insert(then.end(), own.begin(), own.end());
  }
  expect(passes, then);
  begin(metrics::Phase::kTeacher);
  std::vector<Prediction> predictions = predict(batch, tokens);
  begin(metrics::Phase::kForward);
  std::optional<models::RouterBalance> routers;
  if (models::router_count(student_.config()) > 0) {
    const auto [real_N, count] = real_tokens(batch, tokens.tokens_N.device());
    routers.emplace(student_.config(), sums.routers, real_N, count, sums.router_scale);
  }
  models::RouterBalance* balance = routers ? &*routers : nullptr;
  models::Dropout dropout;
  if (const auto& adapter = student_.config().adapter) {
    dropout = {adapter->dropout, adapter->seed, sums.step, /*stream=*/0, first_sequence * tokens.seq.seq_len};
  }
  at::Tensor hidden_NH = pass_.forward(tokens, balance, dropout);
  if (routers) {
    routers->finish_forward();
  }
  begin(metrics::Phase::kHead);
  at::Tensor dhidden_NH = head_with_gradients(batch, std::move(predictions), std::move(hidden_NH), sums);
  begin(metrics::Phase::kBackward);
  pass_.backward(tokens, std::move(dhidden_NH), last, balance);
}

losses::MetricQualities MicroBatchRunner::training_quality(int64_t teacher) const {
  if (teacher >= 0) {
    const OwnLoss& own = teachers_[static_cast<size_t>(teacher)];
    return own.teacher->quality(own.loss);
  }
  losses::MetricQualities all = training_quality(0);
  for (int64_t i = 1; i < teachers(); ++i) {
    all = least_exact(all, training_quality(i));
  }
  return all;
}

losses::MetricQualities MicroBatchRunner::evaluation_quality(int64_t teacher) const {
  if (teacher >= 0) {
    const OwnLoss& own = teachers_[static_cast<size_t>(teacher)];
    return own.teacher->quality(evaluated(own.loss));
  }
  losses::MetricQualities all = evaluation_quality(0);
  for (int64_t i = 1; i < teachers(); ++i) {
    all = least_exact(all, evaluation_quality(i));
  }
  return all;
}

void MicroBatchRunner::evaluate(const data::Batch& batch, at::Tensor& sums_TM, at::Tensor* tokens_MN) {
  OwnLoss& own = of_batch(batch);
  std::vector<sharding::Pass> passes = own.teacher->passes();
  passes.push_back({&student_});
  expect(passes, passes);
  const sharding::TokenBatch tokens = token_batch(batch, student_.options().device);
  std::vector<Prediction> predictions = predict(batch, tokens);
  at::Tensor hidden_NH = sharding::forward_hidden(student_, student_ropes_, tokens, /*next=*/nullptr, block_);
  std::vector<std::pair<at::Tensor, at::Tensor>> dropped; // of each prediction: log-sum-exps, targets
  for (const auto& [count, head, aligned] : predictions) {
    dropped.emplace_back(own.dropped_mass.log_sum(head, own.loss.teacher_softcap), head.targets_N);
  }
  const at::Tensor metrics_MN = run_head(
      batch, std::move(predictions), std::move(hidden_NH), evaluated(loss_of_batch(batch)),
      /*grads=*/nullptr, sums_TM[batch.teacher_number]);
  int64_t begin = 0;
  for (const auto& [log_sum_N, targets_N] : dropped) {
    const int64_t count = targets_N.size(0);
    own.dropped_mass.add(log_sum_N, metrics_MN[losses::kTeacherLse].narrow(0, begin, count), targets_N);
    begin += count;
  }
  if (tokens_MN != nullptr) {
    *tokens_MN = metrics_MN;
  }
}

std::vector<int64_t> MicroBatchRunner::next_tokens(
    const data::Batch& batch, const std::vector<int64_t>& rows, WhichModel which) {
  const WholeModel student{student_, student_ropes_};
  const auto& [model, ropes] = which == WhichModel::kStudent ? student : *teachers_.front().teacher->whole_model();
  expect({{&model}}, {{&model}});
  sharding::TokenBatch tokens = token_batch(batch, student_.options().device);
  const OwnLoss& teacher = teachers_.front();
  if (which == WhichModel::kTeacher && teacher.rows > 0) {
    tokens.tokens_N = tokens.tokens_N.clamp_max(teacher.rows - 1);
  }
  at::Tensor hidden_NH = sharding::forward_hidden(model, ropes, tokens, /*next=*/nullptr, block_);
  const auto count = static_cast<int64_t>(rows.size());
  at::Tensor next_R = at::empty({count}, tokens.tokens_N.options());
  losses::ColumnRanges columns;
  {
    const device::LabelScope label(device::Category::kHead);
    const at::Tensor weight_VH = sharding::lm_head(model);
    const bool is_double = hidden_NH.scalar_type() == at::kDouble;
    columns = which == WhichModel::kTeacher && !teacher.columns.empty() ? teacher.columns
                                                                        : losses::ColumnRanges{{0, weight_VH.size(0)}};
    at::Tensor logits_1V =
        at::empty({1, weight_VH.size(0)}, hidden_NH.options().dtype(is_double ? at::kDouble : at::kFloat));
    for (int64_t row = 0; row < count; ++row) {
      const at::Tensor hidden_1H = hidden_NH.narrow(0, rows[static_cast<size_t>(row)], 1);
      losses::logits_product(tokens.tokens_N.device().type(), logits_1V, hidden_1H, weight_VH);
      next_R.narrow(0, row, 1).copy_(losses::take_columns(logits_1V.squeeze(0), columns).argmax().reshape({1}));
    }
  }
  hidden_NH.reset();
  model.release(model.head_unit());
  model.retire(model.head_unit());
  const at::Tensor next = losses::ids_of_columns(next_R.cpu(), columns);
  return {next.const_data_ptr<int64_t>(), next.const_data_ptr<int64_t>() + count};
}

void MicroBatchRunner::begin(metrics::Phase phase) {
  phases_.begin(phase);
  if (phase_observer_) {
    phase_observer_(metrics::phase_name(phase));
  }
}

void MicroBatchRunner::prefetch_first(int64_t teacher) {
  if (teacher >= 0) {
    teachers_[static_cast<size_t>(teacher)].teacher->prefetch_first();
  }
}

at::Tensor MicroBatchRunner::zero_sums() const {
  return at::zeros(
      {teachers(), metrics::kNumSums}, at::TensorOptions().dtype(at::kDouble).device(student_.options().device));
}

at::Tensor MicroBatchRunner::zero_router_sums() const {
  return at::zeros({models::router_sums(student_.config())}, zero_sums().options());
}

std::vector<std::array<double, metrics::kNumSums>> sums_to_host(const at::Tensor& sums_TM) {
  const at::Tensor host = sums_TM.cpu();
  std::vector<std::array<double, metrics::kNumSums>> sums(static_cast<size_t>(host.size(0)));
  const auto* from = host.const_data_ptr<double>();
  for (auto& of_teacher : sums) {
    std::copy_n(from, of_teacher.size(), of_teacher.begin());
    from += of_teacher.size();
  }
  return sums;
}

} // namespace distill::trainer
