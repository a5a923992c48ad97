#include "trainer/teacher_capture.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "data/base/status_macros.h"
#include "trainer/setup/cached_teacher.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

// The number of the next part, from which every rank's parts follow. Files that a killed run has left are removed.
absl::StatusOr<int64_t> prepare_folder(
    const std::string& folder, const config::Config& config, const teacher_cache::TeacherHead& head,
    teacher_cache::Manifest& manifest) {
  ASSIGN_OR_RETURN(manifest.head, teacher_cache::write_head(folder, config.teacher, head));
  RETURN_IF_ERROR(teacher_cache::begin_cache(folder, manifest));
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".partial") {
      std::error_code ignored;
      fs::remove(it->path(), ignored);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> parts, teacher_cache::complete_parts(folder));
  return std::max(manifest.parts, parts.empty() ? 0 : parts.back() + 1);
}

} // namespace

absl::StatusOr<std::unique_ptr<TeacherCapture>> TeacherCapture::begin(
    const config::Config& config, const sharding::Mesh& mesh, sharding::ModelShards& teacher, TrainStep& step,
    std::shared_ptr<teacher_cache::CachedRows> rows) {
  std::unique_ptr<TeacherCapture> capture(new TeacherCapture(mesh, step, std::move(rows)));
  capture->folder_ = config.teacher.cache;
  teacher_cache::Manifest manifest = capture->rows_->manifest();
  const teacher_cache::TeacherHead head = gather_head(teacher, manifest.rows, mesh.is_main());
  at::Tensor next = at::zeros({1}, at::kLong);
  absl::Status status;
  if (mesh.is_main()) {
    std::error_code error;
    fs::create_directories(capture->folder_, error);
    auto lock = FolderLock::take(capture->folder_);
    status = lock.status();
    if (lock.ok()) {
      capture->lock_ = *std::move(lock);
      const auto first = prepare_folder(capture->folder_, config, head, manifest);
      status = first.status();
      next.fill_(first.value_or(0));
    }
  }
  RETURN_IF_ERROR(sharding::agree(mesh, status));
  share_head(mesh, manifest);
  if (mesh.host != nullptr) {
    mesh.host->all_reduce(next);
  }
  capture->sink_ = std::make_unique<teacher_cache::RowSink>(
      capture->rows_, manifest, capture->folder_, next.item<int64_t>() + mesh.rank, mesh.world_size,
      config.cache.part_tokens);
  step.micro_batches().observe_teacher(
      [sink = capture->sink_.get()](const data::Batch& batch, const at::Tensor& rows_RW) {
        sink->add(batch, rows_RW);
      });
  return capture;
}

TeacherCapture::~TeacherCapture() {
  step_.micro_batches().observe_teacher({});
}

absl::Status TeacherCapture::publish() {
  RETURN_IF_ERROR(sharding::agree(mesh_, sink_->finish()));
  auto index = teacher_cache::Index::open(folder_, /*partial=*/true);
  RETURN_IF_ERROR(sharding::agree(mesh_, index.status()));
  rows_->replace_index(*std::move(index));
  return absl::OkStatus();
}

} // namespace distill::trainer
