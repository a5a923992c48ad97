#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/models/model_config.h"

// The names that a folder's files give to the tensors of its text model. The model's own names (models/layout.h) begin
// with "model." and "lm_head."; those of a multimodal folder have other prefixes, which depend on the program that
// wrote it.
namespace distill::hf {

struct TextNames {
  std::string_view decoder = "model.";
  std::string_view head = "lm_head.";

  // The name in the files of a tensor with this own name.
  std::string stored(std::string_view own) const;
  // The reverse; nullopt: the name is not that of a part of the text model. The prefix "model." may be missing.
  std::optional<std::string> own(std::string_view stored) const;
};

// Decides by the names of all tensors of a folder which prefixes they have; where no name belongs to a text model, the
// own ones. InvalidArgument: two prefixes are candidates; names `folder` and a tensor of each.
absl::StatusOr<TextNames> find_text_names(const std::vector<std::string_view>& names, const std::string& folder);

// The prefixes that a decoder may have, for errors: "model., model.language_model., ...".
std::string decoder_prefixes();

// Tells whether a tensor with this own name belongs to a part of the text model whose result it would change: one of
// its blocks, its embedding, final norm or head. Others, such as those of a further layer, cannot be reached from the
// input.
bool is_inside(std::string_view own, const models::ModelConfig& config);

} // namespace distill::hf
