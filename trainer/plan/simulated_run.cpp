#include "trainer/plan/simulated_run.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "trainer/step/head_plan.h"

namespace distill::plan {
namespace {

constexpr int64_t kBlasWorkspace = 32 * kMiB;

// Boundaries of `rows` sequences, or of documents packed into them.
at::Tensor boundaries(int64_t rows, int64_t seq_len, bool packed) {
  std::vector<int32_t> at;
  for (int64_t row = 0; row <= rows; ++row) {
    at.push_back(static_cast<int32_t>(row * seq_len));
  }
  if (packed) { // with one document more than rows, attention takes the path for packed documents
    at.insert(at.end() - 1, at.back() - 1);
  }
  return at::tensor(at, at::kInt);
}

} // namespace

at::Tensor blas_workspace() {
  return at::empty({kBlasWorkspace}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

DeterministicScope::DeterministicScope(bool deterministic) : before_(at::globalContext().deterministicAlgorithms()) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
}

DeterministicScope::~DeterministicScope() {
  at::globalContext().setDeterministicAlgorithms(before_, /*warn_only=*/false);
}

data::Batch simulated_batch(const RunShape& shape, int64_t teacher) {
  const config::Config& config = shape.config;
  const int64_t rows = config.train.micro_batch_size, seq_len = config.data.seq_len;
  const auto tokens = [rows](int64_t length) { return at::empty({rows, length}, at::kLong); };
  data::Batch batch;
  batch.tokens_BS = tokens(seq_len);
  batch.targets_BS = tokens(seq_len);
  batch.positions_BS = tokens(seq_len);
  batch.packed = config.data.packing == data::PackingMode::kPack;
  batch.cu_seqlens = boundaries(rows, seq_len, batch.packed);
  batch.max_seqlen = seq_len;
  batch.valid_tokens = trainer::most_valid_tokens(config);
  if (shape.teacher_stream) {
    const int64_t length = shape.teacher_seq_len();
    batch.teacher = {tokens(length), tokens(length), boundaries(rows, length, batch.packed), length, tokens(seq_len)};
  }
  batch.teacher_number = teacher;
  const int64_t row_bytes = shape.teachers[static_cast<size_t>(teacher)].row_bytes();
  if (row_bytes > 0) {
    batch.teacher_rows_NW = at::empty({shape.tokens(), row_bytes}, at::kByte);
  }
  return batch;
}

} // namespace distill::plan
