#include "data/teacher_text.h"

#include <absl/strings/str_cat.h>

#include "data/base/status_macros.h"

namespace distill::data {

namespace {

// Visits the tokens of the completion in the first `lengths` tokens of both texts, in order.
class Completion {
 public:
  Completion(const Shard& shard, int64_t document, int64_t tokens, int64_t teacher_tokens)
      : shard_(shard),
        begin_(shard.document_begin(document)),
        teacher_begin_(shard.teacher_begin(document)),
        tokens_(tokens),
        teacher_tokens_(teacher_tokens) {}

  // Moves both positions to the next token of the completion. Returns false if one of the texts has no further one.
  bool next() {
    advance();
    return token_ < tokens_ && teacher_token_ < teacher_tokens_;
  }
  // Returns, after next() has returned false, whether the other text has a further token of the completion.
  bool other_goes_on() const {
    return token_ < tokens_ || teacher_token_ < teacher_tokens_;
  }
  int64_t token() const {
    return token_;
  }
  int64_t teacher_token() const {
    return teacher_token_;
  }
  // The token is predicted from the one before it, which both texts must have.
  bool is_target() const {
    return token_ > 0 && teacher_token_ > 0;
  }

 private:
  void advance() {
    do {
      ++token_;
    } while (token_ < tokens_ && !shard_.in_loss(begin_ + token_));
    do {
      ++teacher_token_;
    } while (teacher_token_ < teacher_tokens_ && !shard_.in_teacher_completion(teacher_begin_ + teacher_token_));
  }

  const Shard& shard_;
  int64_t begin_, teacher_begin_; // in the shard
  int64_t tokens_, teacher_tokens_;
  int64_t token_ = -1, teacher_token_ = -1;
};

absl::Status different_ids(
    const Shard& shard, int64_t document, int64_t position, const Completion& at, int64_t id, int64_t teacher_id) {
  return absl::DataLossError(absl::StrCat(
      shard.path(), ": document ", document, ": token ", position, " of the completion: expected the same id, found ",
      id, " in the student's text (token ", at.token(), ") and ", teacher_id, " in the teacher's (token ",
      at.teacher_token(), ")"));
}

absl::Status different_counts(const Shard& shard, int64_t document, int64_t shared, bool teacher_is_longer) {
  return absl::DataLossError(absl::StrCat(
      shard.path(), ": document ", document, ": the completion has more than ", shared, " tokens in the ",
      teacher_is_longer ? "teacher's" : "student's", " text, but ", shared, " in the ",
      teacher_is_longer ? "student's" : "teacher's"));
}

absl::Status other_tokens(const Shard& shard, int64_t document, const std::string& expected, const std::string& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(shard.path(), ": document ", document, ": expected ", expected, ", found ", found));
}

// fit_texts of a document that does not fit whole.
TextLengths cut_texts(
    const Shard& shard, int64_t document, int64_t seq_len, int64_t teacher_seq_len, const TextAlignment& alignment) {
  TextLengths lengths{0, 0, true};
  AlignedCompletion completion;
  if (!align_completion(shard, document, whole_texts(shard, document), alignment, completion).ok()) {
    return lengths;
  }
  bool has_target = false;
  for (const auto& piece : completion.split.pieces) {
    const int64_t end = completion.positions[piece.end - 1] + 1;
    const int64_t teacher_end = completion.teacher_positions[piece.teacher_end - 1] + 1;
    if (end > seq_len || teacher_end > teacher_seq_len) {
      break;
    }
    has_target =
        has_target || (completion.positions[piece.begin] > 0 && completion.teacher_positions[piece.teacher_begin] > 0);
    lengths = {end, teacher_end, true};
  }
  return has_target ? lengths : TextLengths{0, 0, true};
}

} // namespace

TextLengths whole_texts(const Shard& shard, int64_t document) {
  return {shard.document_length(document), shard.teacher_length(document), false};
}

absl::Status check_teacher_tokens(const Shard& shard, int64_t document, const TextAlignment* alignment) {
  const bool own_text = shard.teacher_length(document) > 0, other = shard.has_teacher_tokenizer();
  if (alignment == nullptr) {
    return own_text && other
        ? other_tokens(
              shard, document, "a text in the student's tokens",
              "one of the teacher's in the tokens of another tokenizer; teacher.alignment: bytes reads it")
        : absl::OkStatus();
  }
  const std::string remedy = "tokenise the text again with scripts/tokenize.py --teacher-tokenizer";
  if (!own_text || !other) {
    return other_tokens(
        shard, document, absl::StrCat("a text in the tokens of ", alignment->teacher_path()),
        absl::StrCat(own_text ? "one in the student's tokens" : "none", "; ", remedy));
  }
  if (shard.teacher_tokenizer_hash() != alignment->teacher_hash()) {
    return absl::InvalidArgumentError(absl::StrCat(
        shard.path(), ": header field `teacher_tokenizer_hash`: expected ", base::hex(alignment->teacher_hash()), " (",
        alignment->teacher_path(), "), found ", base::hex(shard.teacher_tokenizer_hash()), "; ", remedy));
  }
  return absl::OkStatus();
}

absl::Status align_completion(
    const Shard& shard, int64_t document, const TextLengths& lengths, const TextAlignment& alignment,
    AlignedCompletion& out) {
  out.ids.resize(lengths.tokens);
  out.teacher_ids.resize(lengths.teacher_tokens);
  out.positions.clear();
  out.teacher_positions.clear();
  RETURN_IF_ERROR(shard.read_tokens(shard.document_begin(document), absl::MakeSpan(out.ids)));
  RETURN_IF_ERROR(shard.read_teacher_tokens(shard.teacher_begin(document), absl::MakeSpan(out.teacher_ids)));
  const auto keep = [](std::vector<int64_t>& ids, std::vector<int64_t>& positions, const auto& in_completion) {
    size_t kept = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (in_completion(static_cast<int64_t>(i))) {
        ids[kept++] = ids[i];
        positions.push_back(static_cast<int64_t>(i));
      }
    }
    ids.resize(kept);
  };
  keep(out.ids, out.positions, [&](int64_t i) { return shard.in_loss(shard.document_begin(document) + i); });
  keep(out.teacher_ids, out.teacher_positions, [&](int64_t i) {
    return shard.in_teacher_completion(shard.teacher_begin(document) + i);
  });
  const absl::Status status =
      alignment.align({out.ids, out.positions}, {out.teacher_ids, out.teacher_positions}, out.split);
  return status.ok()
      ? status
      : absl::Status(
            status.code(), absl::StrCat(shard.path(), ": document ", document, ": ", std::string(status.message())));
}

absl::Status check_completion(const Shard& shard, int64_t document, const TextAlignment* alignment) {
  if (shard.teacher_length(document) == 0) {
    return absl::OkStatus();
  }
  if (alignment != nullptr) {
    AlignedCompletion completion;
    return align_completion(shard, document, whole_texts(shard, document), *alignment, completion);
  }
  Completion at(shard, document, shard.document_length(document), shard.teacher_length(document));
  int64_t position = 0;
  for (; at.next(); ++position) {
    int64_t id = 0, teacher_id = 0;
    RETURN_IF_ERROR(shard.read_tokens(shard.document_begin(document) + at.token(), absl::MakeSpan(&id, 1)));
    RETURN_IF_ERROR(
        shard.read_teacher_tokens(shard.teacher_begin(document) + at.teacher_token(), absl::MakeSpan(&teacher_id, 1)));
    if (id != teacher_id) {
      return different_ids(shard, document, position, at, id, teacher_id);
    }
  }
  return at.other_goes_on()
      ? different_counts(shard, document, position, at.teacher_token() < shard.teacher_length(document))
      : absl::OkStatus();
}

TextLengths fit_texts(
    const Shard& shard, int64_t document, int64_t seq_len, int64_t teacher_seq_len, const TextAlignment* alignment) {
  const int64_t length = shard.document_length(document), teacher_length = shard.teacher_length(document);
  if (length <= seq_len && teacher_length <= teacher_seq_len) {
    return {length, teacher_length, false};
  }
  if (alignment != nullptr) {
    return cut_texts(shard, document, seq_len, teacher_seq_len, *alignment);
  }
  TextLengths lengths{0, 0, true};
  bool has_target = false;
  for (Completion at(shard, document, std::min(length, seq_len), std::min(teacher_length, teacher_seq_len));
       at.next();) {
    has_target = has_target || at.is_target();
    lengths = {at.token() + 1, at.teacher_token() + 1, true};
  }
  return has_target ? lengths : TextLengths{0, 0, true};
}

absl::Status read_texts(
    const Shard& shard, int64_t document, const TextLengths& lengths, TeacherText& out,
    const TextAlignment* alignment) {
  out.tokens.resize(lengths.tokens);
  out.teacher_tokens.resize(lengths.teacher_tokens);
  out.completion.clear();
  RETURN_IF_ERROR(shard.read_tokens(shard.document_begin(document), absl::MakeSpan(out.tokens)));
  RETURN_IF_ERROR(shard.read_teacher_tokens(shard.teacher_begin(document), absl::MakeSpan(out.teacher_tokens)));
  if (alignment != nullptr) {
    AlignedCompletion completion;
    RETURN_IF_ERROR(align_completion(shard, document, lengths, *alignment, completion));
    for (const auto& [begin, end, teacher_begin, teacher_end] : completion.split.pieces) {
      out.completion.push_back(
          {completion.positions[begin], completion.teacher_positions[teacher_begin], end - begin,
           teacher_end - teacher_begin});
    }
    return absl::OkStatus();
  }
  Completion at(shard, document, lengths.tokens, lengths.teacher_tokens);
  while (at.next()) {
    const int64_t id = out.tokens[at.token()], teacher_id = out.teacher_tokens[at.teacher_token()];
    if (id != teacher_id) {
      return different_ids(shard, document, static_cast<int64_t>(out.completion.size()), at, id, teacher_id);
    }
    out.completion.push_back({at.token(), at.teacher_token()});
  }
  return at.other_goes_on()
      ? different_counts(
            shard, document, static_cast<int64_t>(out.completion.size()), at.teacher_token() < lengths.teacher_tokens)
      : absl::OkStatus();
}

} // namespace distill::data
