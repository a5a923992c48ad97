#include "trainer/teacher/captured_rows.h"

#include <ATen/ATen.h>

#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/sharding/passes.h"
#include "trainer/teacher/token_batch.h"
#include "trainer/teacher_cache/row_conversion.h"
#include "trainer/teacher_cache/row_places.h"

namespace distill::trainer {

at::Tensor places_with_rows(const data::Batch& batch) {
  const bool own_tokens = batch.teacher && batch.teacher->aligned;
  if (batch.stretches.empty()) {
    return at::zeros({own_tokens ? teacher_cache::tokens_with_rows(batch) : batch.valid_tokens}, at::kLong);
  }
  if (!own_tokens) {
    return batch.targets_BS.flatten().ne(losses::kIgnoreIndex).nonzero().flatten();
  }
  std::vector<int64_t> places;
  for (const data::Stretch& stretch : batch.stretches) {
    for (const teacher_cache::RowPlace& place : teacher_cache::row_places(batch, stretch)) {
      places.push_back(place.at);
    }
  }
  return at::tensor(places, at::kLong);
}

at::Tensor rows_of_teacher(
    const teacher_cache::RowFormat& format, const data::Batch& batch, sharding::ModelShards& teacher,
    const at::Tensor& hidden_RG, const losses::ChunkOptions& chunks) {
  if (!format.is_sparse()) {
    return teacher_cache::encode(format, hidden_RG);
  }
  const at::Device device = hidden_RG.device();
  const device::LabelScope label(device::Category::kHead);
  teacher_cache::RowSource source;
  source.hidden_RG = hidden_RG;
  source.meta_device = device::kernel_device(device);
  if (format.kind == losses::TeacherKind::kSampled) {
    const at::Tensor keys_R =
        batch.stretches.empty() ? at::empty({hidden_RG.size(0)}, at::kLong) : teacher_cache::token_keys(batch);
    source.keys_R = copy_to_device(keys_R, device);
  }
  source.lm_head_VG = sharding::lm_head(teacher);
  at::Tensor rows_RW = teacher_cache::make_rows(format, source, chunks);
  source = {};
  teacher.release(teacher.head_unit());
  return rows_RW;
}

} // namespace distill::trainer
