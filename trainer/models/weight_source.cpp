#include "trainer/models/weight_source.h"

namespace distill::models {
namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24; // of the host buffer through which values reach another device

} // namespace

void WeightSource::copy_range(const UnitLayout& layout, int64_t flat_begin, at::Tensor dst) const {
  TORCH_CHECK(
      dst.dim() == 1 && dst.is_contiguous() && at::isFloatingType(dst.scalar_type()) && flat_begin >= 0,
      "copy_range: a contiguous one-dimensional floating-point tensor is expected, found ", dst.sizes(), " of ",
      dst.scalar_type());
  dst.zero_();
  for (const FlatPiece& piece : flat_pieces(layout, flat_begin, flat_begin + dst.numel())) {
    at::Tensor part = dst.narrow(0, piece.flat_begin - flat_begin, piece.count);
    if (writes_to(part.device())) {
      copy_tensor(piece, piece.tensor_begin, part);
      continue;
    }
    for (int64_t done = 0; done < piece.count; done += kStagingElements) {
      const int64_t count = std::min(kStagingElements, piece.count - done);
      at::Tensor staging = at::empty({count}, part.options().device(at::kCPU));
      copy_tensor(piece, piece.tensor_begin + done, staging);
      part.narrow(0, done, count).copy_(staging);
    }
  }
}

} // namespace distill::models
