#include "trainer/teacher_cache/row_conversion.h"

#include <ATen/ATen.h>

#include <bit>
#include <cstring>

#include "data/base/checksum.h"
#include "data/shard.h"
#include "losses/head/capture.h"
#include "losses/options.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::teacher_cache {
namespace {

using losses::kIgnoreIndex;
using losses::TeacherKind;

// Rows are computed in multiples of this number. A matrix product on the CPU rounds its last few rows differently, so
// that a token's row would otherwise depend on how many tokens are computed with it.
constexpr int64_t kRowGroup = 32;

} // namespace

at::Tensor token_keys(const data::Batch& batch) {
  const int64_t* targets_N = batch.targets_BS.const_data_ptr<int64_t>();
  std::vector<int64_t> keys;
  keys.reserve(static_cast<size_t>(std::max<int64_t>(0, batch.valid_tokens)));
  for (const data::Stretch& stretch : batch.stretches) {
    struct Place {
      uint8_t shard[32];
      int64_t document, token;
    } place{};
    static_assert(sizeof(place) == 48);
    std::memcpy(place.shard, stretch.shard->header().header_hash, sizeof(place.shard));
    place.document = stretch.document;
    for (int64_t i = 0; i < stretch.tokens; ++i) {
      if (targets_N[stretch.at + i] != kIgnoreIndex) {
        place.token = stretch.begin + i;
        keys.push_back(std::bit_cast<int64_t>(base::checksum(&place, sizeof(place))));
      }
    }
  }
  return at::tensor(keys, at::kLong);
}

at::Tensor make_rows(const RowFormat& format, const RowSource& source, const losses::ChunkOptions& chunks) {
  const int64_t rows = source.hidden_RG.size(0);
  if (!format.is_sparse()) {
    return encode(format, source.hidden_RG);
  }
  if (rows == 0) {
    return at::empty({0, format.row_bytes()}, source.hidden_RG.options().dtype(at::kByte));
  }
  const int64_t padding = (kRowGroup - rows % kRowGroup) % kRowGroup;
  losses::CaptureInputs inputs;
  inputs.hidden_NG = padding == 0 ? source.hidden_RG : at::constant_pad_nd(source.hidden_RG, {0, 0, 0, padding});
  inputs.weight_VG = source.lm_head_VG;
  inputs.columns = format.column_ranges();
  inputs.softcap = format.softcap;
  inputs.temperature = format.temperature;
  inputs.meta_device = source.meta_device;
  if (format.kind == TeacherKind::kTopK) {
    const losses::TopK topk = losses::capture_topk(inputs, format.entries, chunks);
    return encode_sparse(
        format, {topk.ids_NK.narrow(0, 0, rows), topk.log_probs_NK.narrow(0, 0, rows), topk.tail_N.narrow(0, 0, rows)});
  }
  const losses::Samples draws = losses::capture_samples(
      inputs, padding == 0 ? source.keys_R : at::constant_pad_nd(source.keys_R, {0, padding}),
      {.samples = format.entries, .seed = static_cast<uint64_t>(format.seed), .exponent = format.exponent}, chunks);
  // Weights of 1 / S are not stored, so that the ids must show that they are NaN.
  draws.ids_NS.masked_fill_(draws.weights_NS.ne(draws.weights_NS), -1);
  return encode_sparse(format, {draws.ids_NS.narrow(0, 0, rows), draws.weights_NS.narrow(0, 0, rows), {}});
}

void give_teacher(const RowFormat& format, const at::Tensor& rows_NW, losses::LinearHeadInputs& inputs) {
  const SparseRows rows = decode_sparse(format, rows_NW);
  inputs.teacher_temperature = format.temperature;
  inputs.columns = format.column_ranges();
  if (format.kind == TeacherKind::kTopK) {
    inputs.topk_ids_NK = rows.ids_RK;
    inputs.topk_log_probs_NK = rows.values_RK;
    inputs.tail_N = rows.tail_R;
  } else {
    inputs.sample_ids_NS = rows.ids_RK;
    inputs.sample_weights_NS = rows.values_RK;
  }
}

} // namespace distill::teacher_cache
