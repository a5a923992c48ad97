#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <vector>

#include "data/prefetch.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/writing_ranks.h"
#include "trainer/step/train_step.h"

namespace distill::trainer {

// Brings every rank its micro-batches at the same time. Before each global batch one small all-reduce on the host says
// whether every rank has its data and whether any was asked to stop. A rank that waits for its data goes on taking part
// in these all-reduces, so that a signal to any rank is seen by all of them at the same batch.
class BatchLoader {
 public:
  struct Hooks {
    std::function<bool()> asked_to_stop; // whether this rank was asked to stop; called often
    // What this rank writes (a checkpoint, a cache), and what follows from the sums over all ranks, which the same
    // all-reduce brings.
    std::function<sharding::WritingRanks()> own_writing = [] { return sharding::WritingRanks{}; };
    std::function<absl::Status(const sharding::WritingRanks&)> take_writing = [](const sharding::WritingRanks&) {
      return absl::OkStatus();
    };
  };

  // `mesh` and `batches` outlive this. `micro_batches`: of a global batch, on each rank.
  BatchLoader(const sharding::Mesh& mesh, data::Prefetcher& batches, int64_t micro_batches, Hooks hooks)
      : mesh_(mesh), batches_(batches), micro_batches_(micro_batches), hooks_(std::move(hooks)) {}

  // nullopt: a rank was asked to stop. An error of one rank is an error on all.
  absl::StatusOr<std::optional<GlobalBatch>> next();

 private:
  absl::Status collect();
  bool complete() const {
    return static_cast<int64_t>(collected_.size()) == micro_batches_;
  }

  const sharding::Mesh& mesh_;
  data::Prefetcher& batches_;
  int64_t micro_batches_;
  Hooks hooks_;
  std::vector<data::Batch> collected_;
};

} // namespace distill::trainer
