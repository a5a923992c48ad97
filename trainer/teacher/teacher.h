#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "losses/head/inputs.h"
#include "trainer/config/config.h"
#include "trainer/models/block.h"
#include "trainer/sharding/passes.h"
#include "trainer/teacher/teacher_spec.h"

// The teacher of a run, as its steps and evaluations see it. N tokens of the student's, G hidden size of the teacher.
namespace distill::trainer {

// A model that can read any tokens.
struct WholeModel {
  sharding::ModelShards& shards;
  const std::vector<models::RopeTable>& ropes;
};

// What a teacher with a tokenizer of its own gives beside: where the pieces of the batch are (data::AlignedPieces), and
// how probable they are. N, P, Z, of which the first S are spans.
struct AlignedPrediction {
  at::Tensor rows_P, pieces_P; // int64: the student's tokens that predict those of the pieces, and their pieces
  at::Tensor first_rows_Z; // int64: the token that predicts a piece's first one, where the distributions are compared
  at::Tensor log_probs_Z; // fp64: the teacher's log-probability of a piece, over all of its tokens
  at::Tensor lse_Z; // of all of the teacher's logits there, at T = 1
  int64_t pieces = 0, spans = 0, span_tokens = 0; // Z, S, and how many of P are of spans
};

// What a teacher gives the loss head for consecutive tokens of a micro-batch.
struct Prediction {
  int64_t tokens = 0; // how many
  losses::LinearHeadInputs head; // the teacher's members, and valid_tokens where it is known of these tokens
  std::optional<AlignedPrediction> aligned;
};

// Of all tokens of the batch; the teacher's members are not set.
Prediction of_all_tokens(const data::Batch& batch);

class Teacher {
 public:
  Teacher() = default;
  virtual ~Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  // The prediction for each of the student's tokens with a target: of one part of the batch's tokens after the other,
  // which together are all of them. `tokens`: the student's, on the device. `next`: the model whose pass follows; its
  // first units are prefetched. All ranks that share the teacher call it together.
  virtual std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) = 0;
  // Gives back the weights that predict() has gathered. No prediction may hold views of them any more.
  virtual void release() {}
  // The passes over decoder blocks that predict() makes.
  virtual std::vector<sharding::Pass> passes() const {
    return {};
  }
  // Starts gathering the first units of the next predict(). A teacher is frozen, so that the optimizer may be at work.
  virtual void prefetch_first() {}
  // What the token metrics of a loss are.
  virtual losses::MetricQualities quality(const losses::LossOptions& loss) const = 0;
  // The model that can continue a text; null: there is none.
  virtual const WholeModel* whole_model() const {
    return nullptr;
  }
};

// A teacher with its weights.
struct LoadedTeacher {
  TeacherSpec spec;
  // One for each of spec.loaded(). A frozen base that the student's adapters have, too, is in memory once.
  std::vector<std::shared_ptr<sharding::ModelShards>> weights;
};

// `teacher` outlives the result. `block`: the functions that run a decoder block.
std::unique_ptr<Teacher> make_teacher(
    const config::Config& config, const LoadedTeacher& teacher, models::BlockFunctions block = {});

} // namespace distill::trainer
