#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "data/batch.h"
#include "data/mixer.h"
#include "data/row_plan.h"
#include "data/shard.h"

namespace distill::data {

struct DataSource {
  std::string path; // a token shard, or a folder of them
  double weight = 1.0; // share of the samples, relative to the other sources
};

struct DataOptions {
  std::vector<DataSource> sources;
  int64_t seq_len = 2048; // tokens
  std::string packing = "pack"; // pack | concat
  bool shuffle = true;
  int64_t seed = 0;
  // Evaluation: the sources one after the other, every document exactly once, weights ignored; samples from
  // num_samples() on are padding without targets, so that every rank can do the same number of batches.
  bool once = false;
  std::optional<Digest> tokenizer_hash; // what every shard must have been written with
  int64_t vocab_size = 0; // ids the model has; 0: not checked
  bool pin_memory = false; // batches in page-locked memory (needs CUDA)
  bool verify = false; // read every shard completely: payload hash and token ids
};

struct SourceStats {
  std::string path;
  int64_t shards = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t samples = 0; // rows of seq_len in one epoch
  int64_t padding = 0; // tokens of those rows that are padding
  int64_t split_documents = 0; // longer than seq_len and therefore cut (packing: pack)
  bool loss_mask = false;
};

// Random access to an endless, deterministic sequence of samples (rows of seq_len tokens). A sample is a function of
// its number, the options and the files, of nothing else: k ranks that read disjoint numbers read what one would, and a
// resumed run continues from the number where it stopped. Thread-safe.
class Dataset {
 public:
  // Reports every problem of every source in one error.
  static absl::StatusOr<std::unique_ptr<Dataset>> open(const DataOptions& options);

  // Samples [first, first + count), count >= 1. DataLoss: a token id that is not below the shard's vocab_size.
  absl::StatusOr<Batch> batch(int64_t first, int64_t count) const;

  // One epoch: the samples of all sources, each once. The number of real samples when options.once.
  int64_t num_samples() const {
    return num_samples_;
  }
  const DataOptions& options() const {
    return options_;
  }
  const std::vector<SourceStats>& stats() const {
    return stats_;
  }
  Digest tokenizer_hash() const {
    return sources_[0].shards[0].tokenizer_hash();
  }
  int64_t vocab_size() const; // largest of the shards
  // Hash of everything that decides what sample n is. Equal fingerprints: equal samples.
  Digest fingerprint() const;

 private:
  struct Source {
    std::vector<Shard> shards;
    std::vector<int64_t> first_document; // [shards + 1]
    std::variant<PackedRows, ConcatRows> rows;
    int64_t samples = 0; // per epoch
    uint64_t key = 0; // of its shuffles
  };
  struct DocumentPlace {
    const Shard* shard;
    int64_t document; // within the shard
  };
  struct RowView;

  Dataset() = default;
  static void plan(Source& source, SourceStats& stats, const DataOptions& options, int64_t index);
  static DocumentPlace find(const Source& source, int64_t document);
  Mixer::Place locate(int64_t sample) const; // source -1: past the end
  absl::Status fill_row(int64_t sample, RowView& row) const;
  absl::Status fill_packed(const Source& source, const PackedRows& plan, int64_t index, RowView& row) const;
  absl::Status fill_concat(const Source& source, const ConcatRows& plan, int64_t index, RowView& row) const;

  DataOptions options_;
  std::vector<Source> sources_;
  std::vector<SourceStats> stats_;
  std::optional<Mixer> mixer_;
  int64_t num_samples_ = 0;
};

} // namespace distill::data
