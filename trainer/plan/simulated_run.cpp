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

// The pieces of a batch that take the most memory: each of the student's tokens begins a span, and the teacher's tokens
// are all in spans.
data::AlignedPieces most_pieces(int64_t rows, int64_t seq_len, int64_t teacher_tokens) {
  const int64_t tokens = rows * seq_len;
  const auto numbers = [](int64_t count) { return at::zeros({count}, at::kLong); };
  data::AlignedPieces pieces;
  pieces.rows_P = numbers(tokens);
  pieces.pieces_P = numbers(tokens);
  pieces.first_rows_Z = numbers(tokens);
  pieces.teacher_rows_Q = numbers(teacher_tokens);
  pieces.teacher_pieces_Q = numbers(teacher_tokens);
  pieces.teacher_targets_Q = numbers(teacher_tokens);
  pieces.pieces = pieces.spans = pieces.span_tokens = tokens;
  pieces.teacher_span_tokens = teacher_tokens;
  return pieces;
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
  if (shape.teachers[static_cast<size_t>(teacher)].vocabulary().aligned) {
    batch.teacher->aligned = most_pieces(rows, seq_len, shape.teacher_tokens());
  }
  const int64_t row_bytes = shape.teachers[static_cast<size_t>(teacher)].row_bytes();
  if (row_bytes > 0) {
    batch.teacher_rows_NW = at::empty({shape.row_tokens(static_cast<size_t>(teacher)), row_bytes}, at::kByte);
  }
  return batch;
}

} // namespace distill::plan
