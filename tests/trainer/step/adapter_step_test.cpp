#include <gtest/gtest.h>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/models/adapter_weights.h"
#include "trainer/models/layout.h"

// Steps of a student with adapters, on one process.
namespace distill::trainer {
namespace {

models::ModelConfig with_adapters(models::ModelConfig model, double dropout, std::vector<std::string> whole) {
  models::AdapterSpec adapter{.whole = std::move(whole), .dropout = dropout, .seed = 3};
  for (int64_t block = 0; block < model.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(model, block).params) {
      for (const models::ParamPart& part : param.parts) {
        if (param.may_be_float8 && (block == 0 || param.name == "down")) { // blocks with other adapters
          const std::string name = part.hf_name.substr(0, part.hf_name.rfind('.'));
          adapter.modules.push_back({block, param.name, name, part.first_row, part.rows, /*rank=*/2, /*scale=*/1.5});
        }
      }
    }
  }
  model.adapter = std::move(adapter);
  return model;
}

// B begins with other values than zero, so that A has a gradient.
class RandomAdapter : public models::WeightSource {
 public:
  explicit RandomAdapter(const models::ModelConfig& model)
      : random_(models::random_weights(model, 5)), base_(models::random_weights(model, 1)) {}

 protected:
  void copy_tensor(const models::FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    const bool is_adapter = piece.param->adapter || piece.param->name.ends_with(models::kLoraA);
    models::copy_part(is_adapter ? *random_ : *base_, *piece.param, *piece.part, first, std::move(dst));
  }

 private:
  std::unique_ptr<models::WeightSource> random_, base_;
};

struct AdapterStep {
  config::Config config;
  sharding::Mesh mesh;
  LoadedModels models;
  std::unique_ptr<TrainStep> step;

  AdapterStep(
      config::Config settings, double dropout = 0, std::vector<std::string> whole = {}, bool teaches_itself = false,
      models::ActivationPolicy policy = models::ActivationPolicy::kKeep)
      : config(std::move(settings)) {
    models::ModelConfig student = tiny_model(2);
    student.initializer_range = 0.3;
    config.student.path = "student";
    config.teacher.path = teaches_itself ? "student" : "teacher";
    const auto base = std::shared_ptr<models::WeightSource>(models::random_weights(student, 1));
    const models::ModelConfig teacher = teaches_itself ? student : tiny_model(1, 32);
    const auto taught = std::shared_ptr<models::WeightSource>(models::random_weights(teacher, teaches_itself ? 1 : 2));
    const ModelSource source{
        with_adapters(student, dropout, std::move(whole)), base, std::make_shared<RandomAdapter>(student)};
    models = *load_models(config, Environment{}, mesh, source, TeacherSpec::running({teacher, taught, nullptr}), {});
    step = std::make_unique<TrainStep>(
        config, mesh, models, ActivationMemory{std::vector<models::ActivationPolicy>(2, policy), nullptr});
  }

  TrainStep::Results run(const GlobalBatch& batch, int64_t number = 0) {
    step->enqueue(batch, {.lr = 1e-2, .step = number}, {.means = {.valid_tokens = batch.valid_tokens}});
    return *step->results(/*all=*/true);
  }
  static at::Tensor all(const sharding::ModelShards& model, bool master) {
    std::vector<at::Tensor> flat;
    for (int64_t unit = 0; unit < model.num_units(); ++unit) {
      flat.push_back(master ? model.unit(unit).master : model.unit(unit).weights);
    }
    return at::cat(flat).to(at::kDouble);
  }
  at::Tensor trained() const {
    return all(*models.student, /*master=*/true);
  }
  at::Tensor frozen() const {
    return all(*models.student->base(), /*master=*/false);
  }
};

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(AdapterStep, TheBaseStaysAndTheAdaptersLearn) {
  const config::Config config = tiny_config(2);
  const GlobalBatch batch = tiny_batch(config);
  AdapterStep tiny(config);
  const at::Tensor frozen = tiny.frozen(), trained = tiny.trained();
  const double first = tiny.run(batch).record.means.metrics[losses::kLoss];
  for (int64_t step = 1; step < 20; ++step) {
    tiny.run(batch, step);
  }
  EXPECT_TRUE(at::equal(tiny.frozen(), frozen));
  EXPECT_GT(difference(tiny.trained(), trained), 0.01);
  EXPECT_LT(tiny.run(batch).record.means.metrics[losses::kLoss], 0.99 * first);
  EXPECT_FALSE(tiny.models.student->has(tiny.models.student->embedding_unit()));
  EXPECT_FALSE(tiny.models.student->has(tiny.models.student->head_unit()));
  EXPECT_EQ(tiny.models.student->base()->unit(1).master.defined(), false);
}

TEST(AdapterStep, MicroBatchesAndRecomputationChangeNothing) {
  for (const double dropout : {0.0, 0.3}) {
    for (const std::vector<std::string>& whole :
         {std::vector<std::string>{}, {"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"}}) {
      const auto run = [&](int64_t micro, models::ActivationPolicy policy) {
        const config::Config config = tiny_config(micro);
        AdapterStep tiny(config, dropout, whole, /*teaches_itself=*/false, policy);
        for (int64_t step = 0; step < 3; ++step) {
          tiny.run(tiny_batch(config), step);
        }
        return tiny.trained();
      };
      const at::Tensor one = run(4, models::ActivationPolicy::kKeep);
      EXPECT_LT(difference(run(1, models::ActivationPolicy::kKeep), one), 1e-3) << dropout;
      EXPECT_TRUE(at::equal(run(4, models::ActivationPolicy::kRecompute), one)) << dropout;
    }
  }
}

TEST(AdapterStep, DropoutFollowsTheStep) {
  const config::Config config = tiny_config(4);
  const GlobalBatch batch = tiny_batch(config);
  const auto norm = [&](double dropout, int64_t step) {
    return AdapterStep(config, dropout).run(batch, step).record.grad_norm;
  };
  EXPECT_EQ(norm(0.3, 5), norm(0.3, 5));
  EXPECT_NE(norm(0.3, 5), norm(0.3, 6));
  EXPECT_NE(norm(0.3, 5), norm(0, 5));
}

TEST(AdapterStep, ATeacherThatIsTheBaseIsInMemoryOnce) {
  const config::Config config = tiny_config(2);
  const GlobalBatch batch = tiny_batch(config);
  AdapterStep shared(config, 0, {}, /*teaches_itself=*/true);
  ASSERT_EQ(shared.models.teachers.front().weights.size(), 1U);
  EXPECT_EQ(shared.models.teachers.front().weights.front(), shared.models.student->base());
  // The same weights under another path are loaded twice, and give the same numbers.
  config::Config other = config;
  AdapterStep twice(other);
  EXPECT_NE(twice.models.teachers.front().weights.front(), twice.models.student->base());
  const double before = shared.run(batch).record.means.metrics[losses::kForwardKl];
  EXPECT_GT(before, 1e-4); // the adapters make the student another model than its base
}

} // namespace
} // namespace distill::trainer
