#include "trainer/float8_gate/teacher_error.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/teacher/token_batch.h"

namespace distill::float8_gate {
namespace {

// The values of all ranks, in a host tensor on every rank; NaN is a value like another.
at::Tensor gather_values(const sharding::Mesh& mesh, const at::Tensor& own) {
  if (mesh.host == nullptr) {
    return own;
  }
  const at::Tensor counts = sharding::gather_parts(mesh, at::full({1}, own.numel(), at::kLong));
  const int64_t most = counts.max().item<int64_t>();
  if (most == 0) {
    return own;
  }
  at::Tensor padded = at::zeros({most}, at::kFloat);
  padded.narrow(0, 0, own.numel()).copy_(own);
  return sharding::gather_parts(mesh, padded).masked_select(at::arange(most).lt(counts));
}

struct OwnTokens {
  at::Tensor kl; // fp32 on the host, of the tokens with a target
  double agreement = 0, reference_loss = 0, loss = 0; // sums over them
};

OwnTokens own_tokens(absl::Span<const data::Batch> batches, const TokenMetrics& metrics) {
  OwnTokens own;
  std::vector<at::Tensor> kl;
  for (size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor counts = trainer::teacher_targets(batches[i]).ne(losses::kIgnoreIndex);
    const at::Tensor host_MN = metrics[i].to(at::kCPU, at::kDouble);
    kl.push_back(host_MN[losses::kForwardKl].masked_select(counts).to(at::kFloat));
    own.agreement += host_MN[losses::kAgreement].sum().item<double>(); // every number of an ignored token is 0
    own.loss += host_MN[losses::kHard].sum().item<double>();
    own.reference_loss += host_MN[losses::kTeacherCe].sum().item<double>();
  }
  own.kl = at::cat(kl);
  return own;
}

} // namespace

std::string TeacherError::text() const {
  return absl::StrFormat(
      "mean KL %.4g nats, 99th percentile %.3g, top-1 agreement %.1f%%, cross-entropy %.4f -> %.4f, %d tokens", mean_kl,
      p99_kl, 100 * agreement, cross_entropy, float8_cross_entropy, tokens);
}

int64_t num_sample_batches(
    const data::Dataset& data, int64_t micro_batch_size, int64_t tokens, const sharding::Mesh& mesh) {
  const int64_t round_samples = mesh.samples_together(micro_batch_size);
  const int64_t wanted = (tokens + data.options().seq_len - 1) / data.options().seq_len;
  const int64_t samples = std::max<int64_t>(1, std::min(wanted, data.num_samples()));
  return (samples + round_samples - 1) / round_samples;
}

absl::StatusOr<std::vector<data::Batch>> sample_batches(
    const data::Dataset& data, int64_t micro_batch_size, int64_t tokens, const sharding::Mesh& mesh, int64_t teacher) {
  const auto wanted = static_cast<size_t>(num_sample_batches(data, micro_batch_size, tokens, mesh));
  const int64_t together = mesh.samples_together(micro_batch_size);
  std::vector<data::Batch> batches;
  for (int64_t round = 0; batches.size() < wanted; ++round) {
    const bool past_the_end = data.options().once && round * together >= data.num_samples();
    if (teacher >= 0 && past_the_end) {
      break; // the other sequences are those of other teachers
    }
    if (teacher >= 0 && data.teacher_of(round * together) != teacher) {
      continue;
    }
    const int64_t first = mesh.own_first(round * together, micro_batch_size);
    // Samples past the end of held-out data are padding without targets; training data has no end.
    ASSIGN_OR_RETURN(data::Batch batch, data.batch(first, micro_batch_size));
    batches.push_back(std::move(batch));
  }
  return batches;
}

absl::StatusOr<std::vector<TeacherError>> teacher_errors(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, absl::Span<const models::Float8Products> choices,
    const ComparisonOptions& options) {
  ASSIGN_OR_RETURN(
      const std::vector<TokenMetrics> walked, compare(model, environment, mesh, batches, choices, options));
  std::vector<TeacherError> errors;
  for (const TokenMetrics& metrics : walked) {
    const OwnTokens own = own_tokens(batches, metrics);
    at::Tensor sums = at::tensor({own.agreement, own.reference_loss, own.loss}, at::kDouble);
    if (mesh.host != nullptr) {
      mesh.host->all_reduce(sums);
    }
    const at::Tensor kl = gather_values(mesh, own.kl);
    TeacherError error;
    error.tokens = kl.numel();
    if (error.tokens == 0) {
      return absl::InvalidArgumentError(
          "the float8 teacher cannot be measured: expected tokens with a target, found none in the sampled data");
    }
    if (const int64_t finite = kl.isfinite().sum().item<int64_t>(); finite < error.tokens) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "teacher.dtype: float8: expected a finite KL at every token with a target, found %d of %d tokens at which it "
          "is NaN or infinite: the teacher's logits overflow, in float8 or without it",
          error.tokens - finite, error.tokens));
    }
    const auto tokens = static_cast<double>(error.tokens);
    const at::Tensor sorted = std::get<0>(kl.sort());
    error.mean_kl = kl.sum(at::kDouble).item<double>() / tokens;
    error.p99_kl = sorted[static_cast<int64_t>(std::floor(0.99 * (tokens - 1)))].item<double>();
    error.agreement = sums[0].item<double>() / tokens;
    error.cross_entropy = sums[1].item<double>() / tokens;
    error.float8_cross_entropy = sums[2].item<double>() / tokens;
    errors.push_back(error);
  }
  return errors;
}

} // namespace distill::float8_gate
