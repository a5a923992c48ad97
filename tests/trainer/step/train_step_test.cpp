#include "trainer/step/train_step.h"

#include <gtest/gtest.h>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/device/memory_tracker.h"

namespace distill::trainer {
namespace {

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(TrainStep, MicroBatchesAreOneBatch) {
  TinyStep whole(tiny_config(4)), parts(tiny_config(1));
  for (int step = 0; step < 3; ++step) {
    const TrainStep::Results a = whole.run(tiny_batch(whole.config, step));
    const TrainStep::Results b = parts.run(tiny_batch(parts.config, step));
    EXPECT_NEAR(a.record.means.metrics[losses::kLoss], b.record.means.metrics[losses::kLoss], 1e-6);
    EXPECT_NEAR(a.record.grad_norm, b.record.grad_norm, 1e-6 * a.record.grad_norm);
  }
  EXPECT_LT(relative_difference(whole.weights(), parts.weights()), 1e-5);
}

TEST(LoadModels, EveryUnitThatWasReadIsProgress) {
  sharding::Mesh mesh;
  std::vector<std::string> places;
  mesh.watch = [&](int64_t, const char* place) { places.emplace_back(place); };
  const ModelSource student{tiny_model(2), models::random_weights(tiny_model(2), 1)};
  const ModelSource teacher{tiny_model(3, 32), models::random_weights(tiny_model(3, 32), 2)};
  ASSERT_TRUE(load_models(tiny_config(2), Environment{}, mesh, student, TeacherSpec::running(teacher), {}).ok());
  EXPECT_EQ(places, std::vector<std::string>((2 + 2) + (3 + 2), "loading weights")); // embedding, blocks, head
}

TEST(TrainStep, LearnsItsBatch) {
  TinyStep tiny(tiny_config(2));
  const GlobalBatch batch = tiny_batch(tiny.config);
  const double first = tiny.run(batch).record.means.metrics[losses::kLoss];
  double last = first;
  for (int step = 0; step < 30; ++step) {
    last = tiny.run(batch).record.means.metrics[losses::kLoss];
  }
  EXPECT_LT(last, 0.7 * first);
}

// The teacher reads the student's sequences in another order, with more tokens after them.
data::TeacherBatch in_another_order(const data::Batch& batch, int64_t teacher_seq_len) {
  const int64_t rows = batch.tokens_BS.size(0), seq_len = batch.tokens_BS.size(1);
  data::TeacherBatch teacher;
  teacher.tokens_BT = at::randint(0, 40, {rows, teacher_seq_len}, at::kLong);
  teacher.tokens_BT.narrow(1, 0, seq_len).copy_(batch.tokens_BS.flip(0));
  teacher.positions_BT = at::arange(teacher_seq_len).expand({rows, teacher_seq_len}).contiguous();
  teacher.cu_seqlens = at::arange(0, (rows + 1) * teacher_seq_len, teacher_seq_len, at::kInt);
  teacher.max_seqlen = teacher_seq_len;
  teacher.rows_BS = (at::arange(rows).flip(0) * teacher_seq_len).unsqueeze(1) + at::arange(seq_len).unsqueeze(0);
  return teacher;
}

TEST(TrainStep, TheTeachersRowsAreFoundWhereverItReadsThem) {
  for (const int64_t teacher_seq_len : {12, 20}) {
    config::Config config = tiny_config(2);
    config.data.teacher_seq_len = teacher_seq_len;
    TinyStep plain(tiny_config(2)), other(config), garbage(config);
    for (int step = 0; step < 2; ++step) {
      const GlobalBatch batch = tiny_batch(config, step);
      GlobalBatch moved = batch, without = batch;
      for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
        const data::TeacherBatch teacher = in_another_order(batch.micro_batches[i], teacher_seq_len);
        moved.micro_batches[i].teacher = teacher;
        // Rows of tokens without a target are never read.
        without.micro_batches[i].teacher = teacher;
        without.micro_batches[i].teacher->rows_BS =
            at::where(batch.micro_batches[i].targets_BS.eq(-100), at::zeros({}, at::kLong), teacher.rows_BS);
      }
      const TrainStep::Results expected = plain.run(batch), found = other.run(moved), same = garbage.run(without);
      EXPECT_NEAR(found.record.means.metrics[losses::kLoss], expected.record.means.metrics[losses::kLoss], 1e-6);
      EXPECT_EQ(found.record.means.metrics[losses::kLoss], same.record.means.metrics[losses::kLoss]);
      EXPECT_NEAR(found.record.grad_norm, expected.record.grad_norm, 1e-5 * expected.record.grad_norm);
    }
    EXPECT_LT(relative_difference(other.weights(), plain.weights()), 1e-5);
    EXPECT_TRUE(at::equal(other.weights(), garbage.weights()));
  }
}

TEST(TrainStep, AStepThatIsNotFiniteChangesNothing) {
  TinyStep tiny(tiny_config(4));
  const GlobalBatch batch = tiny_batch(tiny.config);
  tiny.run(batch);
  const at::Tensor before = tiny.weights();
  sharding::ModelShards& teacher = *tiny.models.teachers.front().weights.front();
  teacher.unit(teacher.head_unit()).weights.fill_(std::numeric_limits<float>::infinity());
  const TrainStep::Results results = tiny.run(batch);
  EXPECT_TRUE(results.record.skipped);
  EXPECT_TRUE(at::equal(tiny.weights(), before));
  EXPECT_EQ(tiny.step->optimizer().step_count().item<float>(), 1);
}

TEST(TrainStep, AStepWithoutATargetChangesNothing) {
  TinyStep tiny(tiny_config(4)), other(tiny_config(4));
  const GlobalBatch batch = tiny_batch(tiny.config);
  tiny.run(batch);
  other.run(batch);
  GlobalBatch empty = tiny_batch(tiny.config, /*seed=*/8);
  for (data::Batch& micro : empty.micro_batches) {
    micro.targets_BS.fill_(-100);
    micro.valid_tokens = 0;
  }
  empty.valid_tokens = 0;
  const at::Tensor before = tiny.weights();
  const TrainStep::Results results = tiny.run(empty);
  EXPECT_TRUE(results.record.empty());
  EXPECT_FALSE(results.record.skipped);
  EXPECT_TRUE(std::isnan(results.record.means.metrics[losses::kLoss]));
  EXPECT_TRUE(at::equal(tiny.weights(), before));
  EXPECT_EQ(tiny.step->optimizer().step_count().item<float>(), 1);
  // The moments too: a further step is that of a run without the empty one.
  tiny.run(batch);
  other.run(batch);
  EXPECT_TRUE(at::equal(tiny.weights(), other.weights()));
}

TEST(TrainStep, ClipsToTheNormOfTheWholeBatch) {
  config::Config config = tiny_config(1);
  config.optimizer.max_grad_norm = 1e-4;
  TinyStep clipped(config), whole(tiny_config(1));
  const GlobalBatch batch = tiny_batch(config);
  EXPECT_EQ(clipped.run(batch).record.grad_norm, whole.run(batch).record.grad_norm); // of before the clipping
  // AdamW's first moment after one step: (1 - beta1) times the clipped gradient.
  double square = 0;
  for (int64_t unit = 0; unit < clipped.models.student->num_units(); ++unit) {
    const at::Tensor moment = clipped.step->optimizer().moments(unit).exp_avg.to(at::kDouble);
    square += moment.square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(square), (1 - config.optimizer.beta1) * 1e-4, 1e-9);
}

TEST(TrainStep, ResultsComeInTheOrderOfTheSteps) {
  TinyStep tiny(tiny_config(4));
  const GlobalBatch batch = tiny_batch(tiny.config);
  for (const int64_t step : {1, 2}) {
    tiny.step->enqueue(batch, {.failed = step == 2}, {.step = step, .means = {.valid_tokens = batch.valid_tokens}});
  }
  const auto first = tiny.step->results(/*all=*/false), second = tiny.step->results(/*all=*/false);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->record.step, 1);
  EXPECT_EQ(first->failed_ranks, 0);
  EXPECT_EQ(second->record.step, 2);
  EXPECT_EQ(second->failed_ranks, 1);
  EXPECT_FALSE(tiny.step->results(/*all=*/true));
}

TEST(TrainStep, TheUpdateIsAnnouncedAfterTheGradients) {
  TinyStep tiny(tiny_config(2));
  const at::Tensor before = tiny.weights();
  int calls = 0;
  TrainStep::Options options{.lr = 1e-2};
  options.before_update = [&] {
    ++calls;
    EXPECT_TRUE(at::equal(tiny.weights(), before));
    EXPECT_TRUE(tiny.models.student->unit(0).gradient.defined());
  };
  tiny.step->run(tiny_batch(tiny.config), options);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(at::equal(tiny.weights(), before));
}

TEST(TrainStep, PoliciesChangeNoBit) {
  using models::ActivationPolicy;
  TinyStep keep(tiny_config(2));
  auto slab = device::HostSlab::allocate(1 << 20, at::kCPU, 1, "test");
  ASSERT_TRUE(slab.ok()) << slab.status();
  TinyStep mixed(tiny_config(2), {ActivationPolicy::kOffload, ActivationPolicy::kRecompute}, *slab);
  for (int step = 0; step < 2; ++step) {
    keep.run(tiny_batch(keep.config, step));
    mixed.run(tiny_batch(mixed.config, step));
  }
  EXPECT_TRUE(at::equal(keep.weights(), mixed.weights()));
}

TEST(MicroBatch, StepsMayHaveTheLossAloneEvaluationsHaveAllMetrics) {
  using losses::MetricQuality;
  config::Config only_loss = tiny_config(2);
  only_loss.loss.metrics = losses::MetricSet::kLoss;
  TinyStep all(tiny_config(2)), loss(only_loss);
  MicroBatchRunner& micro = loss.step->micro_batches();
  const losses::MetricQualities of_step = micro.training_quality(), of_evaluation = micro.evaluation_quality();
  EXPECT_EQ(of_evaluation, all.step->micro_batches().evaluation_quality());
  EXPECT_EQ(of_evaluation, all.step->micro_batches().training_quality());
  EXPECT_EQ(of_step[losses::kLoss], MetricQuality::kExact);
  EXPECT_EQ(of_step[losses::kForwardKl], MetricQuality::kUnavailable);
  for (int step = 0; step < 2; ++step) {
    const GlobalBatch batch = tiny_batch(only_loss, step);
    const auto expected = all.run(batch).record.means.metrics, found = loss.run(batch).record.means.metrics;
    EXPECT_GT(expected[losses::kForwardKl], 0);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], of_step[i] == MetricQuality::kUnavailable ? 0 : expected[i]) << i;
    }
  }
  EXPECT_TRUE(at::equal(loss.weights(), all.weights()));
  at::Tensor sums_M = micro.zero_sums(), expected_M = micro.zero_sums();
  const data::Batch batch = tiny_batch(only_loss).micro_batches.front();
  micro.evaluate(batch, sums_M);
  all.step->micro_batches().evaluate(batch, expected_M);
  EXPECT_TRUE(at::equal(sums_M, expected_M));
}

// So that eval.samples needs no room in the plan: a pass over as many tokens as an evaluation's, and the next token
// after each of them, while the evaluation's head computes one token at a time.
TEST(MicroBatch, NextTokensTakeLessMemoryThanAnEvaluation) {
  config::Config config = tiny_config(4);
  config.chunks.chunk_size = 1;
  TinyStep tiny(config);
  const data::Batch batch = tiny_batch(config).micro_batches.front();
  MicroBatchRunner& micro = tiny.step->micro_batches();
  at::Tensor sums_M = micro.zero_sums();
  std::vector<int64_t> rows(960); // each token many times: the logits of all of them would be far more than the rest
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<int64_t>(i % 48);
  }
  device::track_memory(at::kCPU);
  const auto peak_of = [](const std::function<void()>& work) {
    device::reset_memory_peaks();
    const int64_t before = device::memory_use().peak();
    work();
    return device::memory_use().peak() - before;
  };
  const int64_t evaluation = peak_of([&] { micro.evaluate(batch, sums_M); });
  const int64_t student = peak_of([&] { (void)micro.next_tokens(batch, rows, WhichModel::kStudent); });
  const int64_t teacher = peak_of([&] { (void)micro.next_tokens(batch, rows, WhichModel::kTeacher); });
  EXPECT_GT(student, 48 * 16 * 4); // it is counted
  EXPECT_LE(student, evaluation);
  EXPECT_LE(teacher, evaluation);
}

} // namespace
} // namespace distill::trainer
