#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/dataset.h"
#include "data/teacher_rows.h"
#include "trainer/teacher_cache/index.h"

namespace distill::teacher_cache {

struct RowsOptions {
  std::string data_key; // of the data set, for messages: "data.train"
  int64_t teacher = -1; // of several teachers, the number of the one whose predictions these are; -1: the only one
  bool partial = false; // stretches may be missing: then read() gives no rows
  bool other_contexts = false; // use rows of tokens whose left context began elsewhere
  bool pin_memory = false; // rows are read into page-locked memory (needs CUDA)
};

// Reads the rows of a data set's tokens from a cache.
class CacheReader : public data::TeacherRows {
 public:
  // Checks the data set against the cache: every token shard must be in it as it was, and unless `partial`, every
  // stretch that the data set may hold with the context that it has there. InvalidArgument names what was expected and
  // what was found. `data` must outlive this object.
  static absl::StatusOr<std::shared_ptr<CacheReader>> open(
      std::shared_ptr<const Index> index, const data::Dataset& data, const RowsOptions& options);

  absl::StatusOr<at::Tensor> read(const data::Batch& batch) const override;

  absl::Status check_stretches(const data::Dataset& data) const override;

  // Tells whether the rows of a stretch with this context (contexts.h) are there.
  bool has(const data::Stretch& stretch, uint64_t context) const;
  Reading take_reading() override;

 private:
  // The tokens [begin, begin + tokens) of a document, and the place of their rows.
  struct Piece {
    StretchPlace place;
    int64_t begin = 0, tokens = 0;
  };

  CacheReader(std::shared_ptr<const Index> index, RowsOptions options)
      : options_(std::move(options)), index_(std::move(index)) {}
  absl::Status map_shards(const data::Dataset& data);
  bool find(const data::Stretch& stretch, uint64_t context, std::vector<Piece>& pieces) const;
  absl::Status no_rows(const data::Stretch& stretch) const;
  absl::Status read_piece(
      const data::Batch& batch, const data::Stretch& stretch, const Piece& piece, uint8_t* rows_NW) const;

  RowsOptions options_;
  std::string lengths_; // of the data set's sequences, for messages, as is the next one
  std::string order_; // of concatenated documents
  std::shared_ptr<const Index> index_;
  std::unordered_map<const data::Shard*, uint32_t> shard_number_; // in the manifest
  mutable std::atomic<int64_t> bytes_ = 0, nanoseconds_ = 0;
};

} // namespace distill::teacher_cache
