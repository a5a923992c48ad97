#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "trainer/config/config.h"
#include "trainer/run_folder/folder_lock.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/train_step.h"
#include "trainer/teacher_cache/cached_rows.h"
#include "trainer/teacher_cache/row_sink.h"

namespace distill::trainer {

// With teacher.source: capture: stores what the teacher says while a run trains, so that later epochs, and other runs,
// read it. All ranks call these together.
class TeacherCapture {
 public:
  // Makes teacher.cache a cache if it is none, and takes the folder for this run. All arguments outlive this object.
  static absl::StatusOr<std::unique_ptr<TeacherCapture>> begin(
      const config::Config& config, const sharding::Mesh& mesh, sharding::ModelShards& teacher, TrainStep& step,
      std::shared_ptr<teacher_cache::CachedRows> rows);
  ~TeacherCapture();

  // This rank's first error; all ranks learn of it with the next batch.
  absl::Status status() const {
    return sink_->status();
  }
  // Before a checkpoint: what has been said so far will be read by a run that continues from there.
  void end_part() {
    sink_->end_part();
  }
  // At the end of an epoch or of the run: everything is on the disk, and is read from now on. An error of one rank is
  // one of all.
  absl::Status publish();

 private:
  TeacherCapture(const sharding::Mesh& mesh, TrainStep& step, std::shared_ptr<teacher_cache::CachedRows> rows)
      : mesh_(mesh), step_(step), rows_(std::move(rows)) {}

  const sharding::Mesh& mesh_;
  TrainStep& step_;
  std::shared_ptr<teacher_cache::CachedRows> rows_;
  std::string folder_;
  std::unique_ptr<FolderLock> lock_; // on rank 0
  std::unique_ptr<teacher_cache::RowSink> sink_;
};

} // namespace distill::trainer
