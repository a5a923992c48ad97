#include "trainer/float8_gate/exceptions.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/models/layout.h"

namespace distill::float8_gate {
namespace {

constexpr double kMargin = 0.95; // of the limit, at which an estimate is measured

std::vector<ProductError> products_of(const models::ModelConfig& config) {
  std::vector<ProductError> effects;
  double total = 0;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(config, block).params) {
      if (config.float8.contains(block, param.name)) {
        effects.push_back({{block, param.name}, 0, static_cast<double>(param.active_numel())});
      }
      total += param.is_matrix ? static_cast<double>(param.active_numel()) : 0;
    }
  }
  for (ProductError& effect : effects) {
    effect.operations /= total;
  }
  return effects;
}

class Search {
 public:
  Search(
      const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
      absl::Span<const data::Batch> batches, const Limits& limits, const ComparisonOptions& options, int64_t memory)
      : model_(model),
        environment_(environment),
        mesh_(mesh),
        batches_(batches),
        limits_(limits),
        options_(options),
        memory_(memory) {}

  absl::StatusOr<ExceptionSearch> run() {
    ExceptionSearch search;
    search.products = model_.config.float8;
    ASSIGN_OR_RETURN(search.before, measure(search.products));
    search.after = search.before;
    search.found = limits_.hold(search.before);
    if (!search.found) {
      ASSIGN_OR_RETURN(search.effects, effects());
      RETURN_IF_ERROR(give_back(search));
    }
    search.exceptions = exceptions_of(search.products, models::block_products(model_.config));
    return search;
  }

 private:
  absl::StatusOr<TeacherError> measure(const models::Float8Products& products) const {
    const std::vector<models::Float8Products> choices{products};
    ASSIGN_OR_RETURN(
        const std::vector<TeacherError> errors,
        teacher_errors(model_, environment_, mesh_, batches_, choices, options_));
    return errors.front();
  }

  // The first micro-batch that has a target, or the first one.
  absl::Span<const data::Batch> first_batch() const {
    for (size_t i = 0; i < batches_.size(); ++i) {
      if (batches_[i].valid_tokens > 0) {
        return batches_.subspan(i, 1);
      }
    }
    return batches_.subspan(0, 1);
  }

  // Every product alone, on one micro-batch; as many at a time as the memory allows.
  absl::StatusOr<std::vector<ProductError>> effects() const {
    std::vector<ProductError> effects = products_of(model_.config);
    const auto first = first_batch();
    const data::Batch& batch = first.front();
    const at::Tensor& tokens = batch.teacher ? batch.teacher->tokens_BT : batch.tokens_BS;
    const int64_t state =
        tokens.numel() * model_.config.hidden_size * static_cast<int64_t>(c10::elementSize(environment_.teacher_dtype));
    const auto at_once = static_cast<size_t>(std::max<int64_t>(1, memory_ / state));
    for (size_t begin = 0; begin < effects.size(); begin += at_once) {
      const size_t end = std::min(effects.size(), begin + at_once);
      std::vector<models::Float8Products> choices(end - begin);
      for (size_t i = begin; i < end; ++i) {
        choices[i - begin].add(effects[i].product);
      }
      ASSIGN_OR_RETURN(
          const std::vector<TeacherError> errors,
          teacher_errors(model_, environment_, mesh_, first, choices, options_));
      for (size_t i = begin; i < end; ++i) {
        effects[i].mean_kl = errors[i - begin].mean_kl;
      }
    }
    std::stable_sort(effects.begin(), effects.end(), [](const ProductError& a, const ProductError& b) {
      return a.mean_kl / a.operations > b.mean_kl / b.operations;
    });
    return effects;
  }

  // The factor by which the error must shrink for the limits to hold.
  double wanted(const TeacherError& error) const {
    const double mean = limits_.mean_kl / error.mean_kl;
    return std::min(mean, limits_.p99_kl == 0 ? mean : limits_.p99_kl / error.p99_kl);
  }

  absl::Status give_back(ExceptionSearch& search) const {
    double left = 0; // sum of the single errors of the products in float8
    for (const ProductError& effect : search.effects) {
      left += effect.mean_kl;
    }
    size_t next = 0;
    while (!search.found && next < search.effects.size()) {
      const double target = left * wanted(search.after) * kMargin;
      do { // at least one
        ProductError& effect = search.effects[next++];
        effect.kept = false;
        left -= effect.mean_kl;
        search.products.remove(effect.product);
      } while (left > target && next < search.effects.size());
      ASSIGN_OR_RETURN(search.after, measure(search.products));
      search.found = limits_.hold(search.after);
    }
    return absl::OkStatus();
  }

  const models::ModelSource& model_;
  const trainer::Environment& environment_;
  const sharding::Mesh& mesh_;
  const absl::Span<const data::Batch> batches_;
  const Limits limits_;
  const ComparisonOptions& options_;
  const int64_t memory_;
};

} // namespace

std::string Limits::text() const {
  std::string text = absl::StrFormat("a mean KL of at most %g nats (float8.max_mean_kl)", mean_kl);
  if (p99_kl > 0) {
    absl::StrAppendFormat(&text, " and a 99th percentile of at most %g (float8.max_p99_kl)", p99_kl);
  }
  return text;
}

absl::StatusOr<ExceptionSearch> find_exceptions(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, const Limits& limits, const ComparisonOptions& options, int64_t memory) {
  return Search(model, environment, mesh, batches, limits, options, memory).run();
}

} // namespace distill::float8_gate
