#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/onpolicy/round_data.h"

// Completions in the tokens of a teacher with a tokenizer of its own (teacher.alignment: bytes): what
// onpolicy.retokenize is asked, what it answers, and how much of a completion is learned then (docs/onpolicy.md).
namespace distill::onpolicy {

// A line for each completion of such a teacher that has no teacher_ids yet; empty: there are none.
std::string retokenize_lines(
    const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, const RoundInputs& inputs);

// An answer: the text of the completion's first `tokens` tokens in the teacher's. Those that follow are an incomplete
// character.
struct TeacherTokens {
  int64_t tokens = 0;
  std::vector<uint32_t> ids;
};

// Gives a completion the teacher's tokens. It then ends, in both, with a boundary that both have: before an incomplete
// character, before a last span whose text may go on (of a truncated completion), and where `room` tokens of the
// teacher's are full. InvalidArgument: the texts differ, or nothing is left; says why.
absl::Status set_teacher_tokens(
    TeacherTokens teacher, const data::TextAlignment& alignment, int64_t room, Completion& completion);

// Reads the answers. A completion of such a teacher without a good one is removed, and listed in `bad` with the file,
// the line and the reason. `teacher_seq_len`: of the sequences that the teacher reads. NotFound: there is no such file.
// The file is not trusted.
absl::Status read_teacher_tokens(
    const std::string& path, const std::vector<Request>& requests, const RoundInputs& inputs, int64_t teacher_seq_len,
    std::map<int64_t, Completion>& completions, std::vector<std::string>& bad);

// What was left off, over all completions.
LeftOff sum_left_off(const std::map<int64_t, Completion>& completions);

} // namespace distill::onpolicy
