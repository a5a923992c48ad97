#include "trainer/models/renumbered_weights.h"

#include <algorithm>

#include "trainer/models/adapter_weights.h"

namespace distill::models {
namespace {

class RenumberedWeights : public WeightSource {
 public:
  RenumberedWeights(std::shared_ptr<const WeightSource> source, std::vector<int64_t> rows, int64_t source_rows)
      : source_(std::move(source)), rows_(std::move(rows)), source_rows_(source_rows) {}

  absl::Status status() const override {
    return source_->status();
  }
  bool writes_to(at::Device device) const override {
    return source_->writes_to(device);
  }

 protected:
  void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const override {
    if (piece.param->name != "embedding" && piece.param->name != "lm_head") {
      copy_part(*source_, *piece.param, *piece.part, first, std::move(dst));
      return;
    }
    ParamLayout table = *piece.param; // the source's
    ParamPart part = *piece.part;
    const int64_t width = table.shape[1];
    TORCH_CHECK(
        table.shape[0] == static_cast<int64_t>(rows_.size()), table.name, ": expected ", rows_.size(), " rows, found ",
        table.shape[0]);
    table.shape[0] = part.rows = source_rows_;
    for (int64_t done = 0; done < dst.numel();) {
      const int64_t row = (first + done) / width, column = (first + done) % width;
      const int64_t from = rows_[static_cast<size_t>(row)];
      const int64_t count = std::min(dst.numel() - done, run_from(row) * width - column);
      at::Tensor out = dst.narrow(0, done, count);
      if (from < 0) {
        out.zero_();
      } else {
        copy_part(*source_, table, part, from * width + column, std::move(out));
      }
      done += count;
    }
  }

 private:
  // Counts the rows from `row` on that follow each other in the source, too.
  int64_t run_from(int64_t row) const {
    const auto begin = static_cast<size_t>(row);
    const int64_t step = rows_[begin] < 0 ? 0 : 1;
    size_t end = begin + 1;
    while (end < rows_.size() && rows_[end] == rows_[end - 1] + step) {
      ++end;
    }
    return static_cast<int64_t>(end - begin);
  }

  std::shared_ptr<const WeightSource> source_;
  std::vector<int64_t> rows_;
  int64_t source_rows_;
};

} // namespace

std::unique_ptr<WeightSource> renumbered_weights(
    std::shared_ptr<const WeightSource> source, std::vector<int64_t> rows, int64_t source_rows) {
  return std::make_unique<RenumberedWeights>(std::move(source), std::move(rows), source_rows);
}

at::Tensor in_source_order(const at::Tensor& table_VG, const std::vector<int64_t>& rows, int64_t source_rows) {
  std::vector<int64_t> loaded, of_source;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= 0) {
      loaded.push_back(static_cast<int64_t>(i));
      of_source.push_back(rows[i]);
    }
  }
  const at::Tensor from = at::tensor(loaded, at::kLong), to = at::tensor(of_source, at::kLong);
  return at::zeros({source_rows, table_VG.size(1)}, table_VG.options())
      .index_copy_(0, to, table_VG.index_select(0, from));
}

} // namespace distill::models
