#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <vector>

#include "data/prefetch.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/train_step.h"

namespace distill::trainer {

// Brings every rank its micro-batches at the same time. Before each global batch one small all-reduce on the host says
// whether every rank has its data and whether any was asked to stop. A rank that waits for its data goes on taking part
// in these all-reduces, so that a signal to any rank is seen by all of them at the same batch.
class BatchLoader {
 public:
  // How many ranks have files that are being written (of a checkpoint, or of a cache), and how many have failed to
  // write one. A rank gives its own share, 0 or 1, and receives the sums of the same all-reduce.
  struct Writers {
    int64_t writing = 0;
    int64_t failed = 0;
  };
  struct Hooks {
    std::function<bool()> asked_to_stop; // whether this rank was asked to stop; called often
    std::function<Writers()> own_writers = [] { return Writers{}; };
    std::function<absl::Status(const Writers&)> take_writers = [](const Writers&) { return absl::OkStatus(); };
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
