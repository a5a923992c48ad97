#include "trainer/tools/captured_mass.h"

#include <ATen/ATen.h>
#include <absl/strings/str_format.h>

#include "data/base/status_macros.h"
#include "losses/head/linear_head.h"
#include "trainer/config/teachers.h"
#include "trainer/dropped_mass_check.h"
#include "trainer/metrics/log.h"
#include "trainer/step/dropped_mass.h"
#include "trainer/teacher/captured_rows.h"

namespace distill::trainer {

absl::Status check_captured_mass(
    const config::Config& config, const CaptureInputs& inputs, sharding::ModelShards& teacher, CaptureStep& step,
    const sharding::Mesh& mesh) {
  const Vocabulary& vocabulary = inputs.teacher.vocabulary();
  DroppedMass mass(vocabulary.dropped);
  if (mass.empty()) {
    return absl::OkStatus();
  }
  const int64_t samples = config.train.micro_batch_size;
  const auto batch = inputs.data.back()->batch(mesh.own_first(0, samples), samples);
  RETURN_IF_ERROR(sharding::agree(mesh, batch.status()));
  const double softcap = teacher.config().final_softcap;
  losses::LinearHeadInputs head; // the teacher as a student without a teacher
  head.hidden_NH = step.hidden(*batch, places_with_rows(*batch));
  head.weight_VH = teacher.lm_head_weight();
  head.columns = vocabulary.columns;
  const losses::LossOptions options{
      .divergence = losses::Divergence::kNone, .soft_weight = 0, .student_softcap = softcap};
  const at::Tensor lse_N =
      losses::linear_head(head, options, config.chunks, /*grads=*/nullptr).metrics_MN[losses::kStudentLse];
  losses::LinearHeadInputs as_teacher;
  as_teacher.teacher_hidden_NG = head.hidden_NH;
  as_teacher.teacher_weight_VG = head.weight_VH;
  mass.add(mass.log_sum(as_teacher, softcap), lse_N, at::zeros_like(lse_N, at::kLong));
  as_teacher = head = {};
  teacher.release(teacher.head_unit());
  teacher.retire(teacher.head_unit());
  at::Tensor sum = mass.take_sum();
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sum);
  }
  const int64_t tokens = sharding::sum_over_ranks(mesh, batch->valid_tokens);
  if (tokens == 0) {
    return absl::OkStatus();
  }
  const double mean = sum.item<double>() / static_cast<double>(tokens);
  if (mesh.is_main()) {
    metrics::log_info(absl::StrFormat(
        "the %s's mean probability of its %d tokens that have no part in the loss: %.4g",
        config::text_of_teacher(config), mass.size(), mean));
  }
  return judge_dropped_mass(config, mean);
}

} // namespace distill::trainer
