#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "data/batch.h"
#include "trainer/teacher_cache/cached_rows.h"
#include "trainer/teacher_cache/part_thread.h"

namespace distill::teacher_cache {

// Writes the rows of the stretches that a cache lacks, in the order in which a run computes them, to parts of their
// own.
class RowSink {
 public:
  // This rank writes the parts first_part, first_part + stride, ... A part is completed once its stretches have
  // `part_tokens` tokens.
  RowSink(
      std::shared_ptr<const CachedRows> cached, const Manifest& manifest, std::string folder, int64_t first_part,
      int64_t stride, int64_t part_tokens);

  // The rows [R, W] of a batch's tokens with a target, on any device; does not wait for it.
  void add(const data::Batch& batch, const at::Tensor& rows_RW);
  // Completes the part that is being written.
  void end_part();
  // Waits until everything is on the disk. The first error names the file.
  absl::Status finish();
  absl::Status status() const {
    return thread_.status();
  }

 private:
  std::shared_ptr<const CachedRows> cached_;
  int64_t row_bytes_, part_, stride_, part_tokens_;
  int64_t tokens_ = 0; // in the part that is being written
  std::set<std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>> written_; // shard, document, first token, context
  PartThread thread_;
};

// What a part says of a batch's stretch, all but the checksum. `shard`: its number in the manifest; `context`:
// contexts.h.
StretchEntry entry_of(const data::Batch& batch, const data::Stretch& stretch, uint32_t shard, uint64_t context);

// Adds an entry of this batch's stretch to `out`, and the tokens of its rows.
void add_stretch(const data::Batch& batch, const data::Stretch& stretch, const StretchEntry& entry, RowsToWrite& out);

// A copy in host memory, page-locked where it comes from a GPU, and the event after which it is complete; null: at
// once.
at::Tensor copy_to_host(const at::Tensor& rows_RW, std::shared_ptr<c10::Event>& copied);

} // namespace distill::teacher_cache
