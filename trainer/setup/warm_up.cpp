#include "trainer/setup/warm_up.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "trainer/device/device_hooks.h"
#include "trainer/models/ops/attention.h"

namespace distill::trainer {
namespace {

void use_libraries(at::Device device, at::ScalarType dtype) {
  constexpr int64_t kTokens = 256, kHeads = 4, kHeadDim = 128, kWidth = kHeads * kHeadDim;
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  const at::Tensor x = at::zeros({kTokens, kWidth}, options), weight = at::zeros({kWidth, kWidth}, options);
  at::mm(x, weight.t()); // the three products of a layer: of its output, its input's gradient, its weight's
  at::mm(x, weight);
  at::mm(x.t(), x);
  const models::SequenceInfo seq = models::dense_sequences(/*batch=*/1, kTokens, device);
  const at::Tensor q = x.view({kTokens, kHeads, kHeadDim});
  const models::AttentionResult result = models::attention_forward(q, q, q, seq, {/*scale=*/1});
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(q), dv = at::empty_like(q);
  models::attention_backward(x, q, q, q, result, seq, {/*scale=*/1}, dq, dk, dv);
}

} // namespace

void load_libraries(const Environment& environment) {
  if (!environment.device.is_cuda()) {
    return;
  }
  use_libraries(environment.device, environment.student_dtype);
  if (environment.teacher_dtype != environment.student_dtype) {
    use_libraries(environment.device, environment.teacher_dtype);
  }
  device::synchronize(environment.device);
  device::empty_allocator_cache(environment.device);
}

void open_communicators(const sharding::Mesh& mesh, at::Device device) {
  if (!device.is_cuda() || mesh.world == nullptr) {
    return;
  }
  constexpr int64_t kElements = int64_t{1} << 24; // fewer would be sent by other algorithms than a block is
  {
    const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
    const int64_t shard = kElements / mesh.shard_size;
    const at::Tensor part = at::zeros({shard}, options), whole = at::zeros({shard * mesh.shard_size}, options);
    mesh.gather->all_gather(whole, part);
    mesh.reduce->reduce_scatter(part, whole);
    if (mesh.replicate != nullptr) {
      mesh.replicate->all_reduce(part);
    }
    mesh.world->all_reduce(at::zeros({16}, options.dtype(at::kDouble)));
    device::synchronize(device);
  }
  device::empty_allocator_cache(device);
}

} // namespace distill::trainer
