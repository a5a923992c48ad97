#include "trainer/plan/saved_bytes.h"

#include <ATen/ops/empty.h>

#include "trainer/device/simulation.h"
#include "trainer/models/block.h"

namespace distill::plan {

BlockBytes saved_bytes(const RunShape& shape) {
  const device::Simulation simulation(shape.environment.device.type());
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto compute = meta.dtype(shape.environment.student_dtype);
  const models::UnitLayout layout = models::unit_layouts(shape.student)[1];
  models::SequenceInfo seq;
  seq.batch = shape.config.train.micro_batch_size;
  seq.seq_len = shape.config.data.seq_len;
  seq.max_seqlen = seq.seq_len;
  seq.segments_host = {0, shape.tokens()};
  const at::Tensor angles = at::empty({shape.tokens(), shape.student.head_dim / 2}, meta.dtype(at::kFloat));
  const at::Tensor x_NH = at::empty({shape.tokens(), shape.student.hidden_size}, compute);
  models::BlockSaved saved;
  models::block_forward(
      shape.student, seq, {angles, angles}, models::block_params(layout, at::empty({layout.numel}, compute)), x_NH,
      &saved);
  return {.all = saved.bytes(), .input = static_cast<int64_t>(x_NH.nbytes())};
}

} // namespace distill::plan
