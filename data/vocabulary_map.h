#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "data/tokenizer.h"

namespace distill::data {

// How the tokens of a teacher's tokenizer are those of a student's: a token is known by its text. Both tokenizers have
// the same vocabulary and make the same tokens of every text but for added tokens, which one of them may lack, and for
// the numbers: an id may mean another token in the other one.
struct VocabularyMap {
  struct Pair {
    int64_t student = 0, teacher = 0; // ids of one token
  };
  std::vector<Pair> shared; // by the student's id
  std::vector<int64_t> teacher_only; // ids of the teacher's tokens that the student's tokenizer lacks, ascending
  std::vector<int64_t> student_only; // ids of the student's tokens that the teacher's lacks, ascending
  int64_t moved = 0; // tokens of both that have another id in each
};

// InvalidArgument: the two make other tokens of a text (another model, merges, scores, normalizer or pre-tokenizer), or
// one lacks tokens that are not added ones. The message names both files, how many tokens they share, and the first
// tokens, merges or components that differ. The padding of the models' vocabularies is no part of a tokenizer.
absl::StatusOr<VocabularyMap> map_vocabularies(const Tokenizer& teacher, const Tokenizer& student);

} // namespace distill::data
