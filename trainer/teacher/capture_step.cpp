#include "trainer/teacher/capture_step.h"

#include <ATen/ATen.h>

#include "trainer/device/memory_tracker.h"
#include "trainer/teacher/captured_rows.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {

CaptureStep::CaptureStep(
    const config::Config& config, sharding::ModelShards& teacher, teacher_cache::RowFormat rows,
    models::BlockFunctions block)
    : config_(config),
      teacher_(teacher),
      rows_(rows),
      block_(std::move(block)),
      ropes_(models::make_rope_tables(
          teacher.config().ropes, std::max(config.data.seq_len, config.data.teacher_length()),
          teacher.options().device)) {}

at::Tensor CaptureStep::hidden(const data::Batch& batch, const at::Tensor& places_R) {
  device::enter_phase(device::MemoryPhase::kTeacher);
  const at::Device device = teacher_.options().device;
  const at::Tensor hidden_TG = sharding::forward_hidden(
      teacher_, ropes_, teacher_token_batch(batch, device, rows_if_beyond(config_, teacher_.config())),
      /*next=*/nullptr, block_);
  const at::Tensor teacher_places_R =
      batch.teacher && !batch.teacher->aligned ? batch.teacher->rows_BS.flatten().index_select(0, places_R) : places_R;
  at::Tensor hidden_RG = hidden_TG.index_select(0, copy_to_device(teacher_places_R, device));
  device::label(hidden_RG, device::Category::kHidden);
  return hidden_RG;
}

at::Tensor CaptureStep::run(const data::Batch& batch) {
  const at::Tensor hidden_RG = hidden(batch, places_with_rows(batch));
  device::enter_phase(device::MemoryPhase::kHead);
  at::Tensor rows_RW = rows_of_teacher(rows_, batch, teacher_, hidden_RG, config_.chunks);
  teacher_.retire(teacher_.head_unit());
  return rows_RW;
}

} // namespace distill::trainer
