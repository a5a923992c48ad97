#include "trainer/plan/saved_bytes.h"

#include <ATen/ops/empty.h>

#include "trainer/device/simulation.h"
#include "trainer/models/block.h"

namespace distill::plan {

std::vector<BlockBytes> saved_bytes(const RunShape& shape) {
  const device::Simulation simulation(shape.environment.device.type());
  const models::ModelConfig& student = shape.student;
  const auto compute = at::TensorOptions().device(at::kMeta).dtype(shape.environment.student_dtype);
  models::SequenceInfo seq;
  seq.batch = shape.config.train.micro_batch_size;
  seq.seq_len = shape.config.data.seq_len;
  seq.max_seqlen = seq.seq_len;
  seq.segments_host = {0, shape.tokens()};
  seq.positions_N = at::empty({shape.tokens()}, compute.dtype(at::kLong));
  const std::vector<models::RopeAngles> angles =
      models::rope_angles(models::make_rope_tables(student.ropes, seq.seq_len, at::kMeta), seq);
  const at::Tensor x_NH = at::empty({shape.tokens(), student.hidden_size}, compute);
  std::vector<BlockBytes> bytes(student.kinds.size());
  for (int64_t kind = 0; kind < static_cast<int64_t>(bytes.size()); ++kind) {
    const auto layer = std::find(student.layers.begin(), student.layers.end(), kind) - student.layers.begin();
    if (layer == student.num_layers()) {
      continue;
    }
    const models::UnitLayout layout = models::block_layout(student, layer);
    models::BlockSaved saved;
    models::block_forward(
        {student.layer(layer), seq, angles, /*balance=*/nullptr, shape.config.memory.tile_tokens},
        models::block_params(layout, at::empty({layout.numel}, compute)), x_NH, &saved);
    BlockBytes& own = bytes[static_cast<size_t>(kind)];
    own.all = saved.bytes();
    own.input = shape.blocks().recomputes_attention ? static_cast<int64_t>(x_NH.nbytes())
                                                    : models::save_input_and_attention(std::move(saved)).bytes();
  }
  return bytes;
}

} // namespace distill::plan
