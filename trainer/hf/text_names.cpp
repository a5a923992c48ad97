#include "trainer/hf/text_names.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

namespace distill::hf {
namespace {

constexpr TextNames kOwn{};

// transformers 5's names of a multimodal model; those of a causal model inside of another one, as transformers 4 wrote
// and most folders of the hub have them; and those of a model that was saved without its head.
constexpr std::string_view kDecoders[] = {
    kOwn.decoder, "model.language_model.", "language_model.model.", "language_model."};
constexpr std::string_view kHeads[] = {kOwn.head, "language_model.lm_head."};
constexpr std::string_view kDecoderParts[] = {"embed_tokens.", "layers.", "norm."};

// Takes a prefix off a name; false: the name does not begin with it.
bool consume(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return false;
  }
  name.remove_prefix(prefix.size());
  return true;
}

std::string joined(std::string_view prefix, std::string_view name) {
  return std::string(prefix).append(name);
}

bool is_of_decoder(std::string_view name, std::string_view prefix) {
  return consume(name, prefix) &&
      std::any_of(std::begin(kDecoderParts), std::end(kDecoderParts), [&](std::string_view part) {
           return name.starts_with(part);
         });
}

// The prefix of `prefixes` that names have, of which `belongs` decides; the first one where none has any.
template <size_t N, typename Belongs>
absl::StatusOr<std::string_view> choose(
    const std::string_view (&prefixes)[N], const std::vector<std::string_view>& names, const std::string& folder,
    const char* part, const Belongs& belongs) {
  std::string_view chosen = prefixes[0], example;
  for (const std::string_view prefix : prefixes) {
    const auto found =
        std::find_if(names.begin(), names.end(), [&](std::string_view name) { return belongs(name, prefix); });
    if (found == names.end()) {
      continue;
    }
    if (!example.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, ": one ", part, " of a text model is expected, found two: ", std::string(example), " and ",
          std::string(*found), "; programs differ in which of the two they read: remove one of them"));
    }
    chosen = prefix;
    example = *found;
  }
  return chosen;
}

} // namespace

std::string TextNames::stored(std::string_view own) const {
  if (consume(own, kOwn.decoder)) {
    return joined(decoder, own);
  }
  return consume(own, kOwn.head) ? joined(head, own) : std::string(own);
}

std::optional<std::string> TextNames::own(std::string_view stored) const {
  if (consume(stored, head)) {
    return joined(kOwn.head, stored);
  }
  if (consume(stored, decoder) || decoder == kOwn.decoder) {
    return joined(kOwn.decoder, stored);
  }
  return std::nullopt;
}

absl::StatusOr<TextNames> find_text_names(const std::vector<std::string_view>& names, const std::string& folder) {
  const auto decoder = choose(kDecoders, names, folder, "decoder", is_of_decoder);
  if (!decoder.ok()) {
    return decoder.status();
  }
  const auto head = choose(kHeads, names, folder, "head", [](std::string_view name, std::string_view prefix) {
    return name.starts_with(prefix);
  });
  if (!head.ok()) {
    return head.status();
  }
  return TextNames{*decoder, *head};
}

std::string decoder_prefixes() {
  std::string text;
  for (const std::string_view prefix : kDecoders) {
    text += text.empty() ? "" : ", ";
    text += prefix;
  }
  return text;
}

bool is_inside(std::string_view own, const models::ModelConfig& config) {
  if (own.starts_with(kOwn.head)) {
    return true;
  }
  if (!consume(own, kOwn.decoder)) {
    return false;
  }
  for (const std::string_view part : {"embed_tokens.", "norm.", "lm_head."}) {
    if (own.starts_with(part)) {
      return true;
    }
  }
  const size_t end = consume(own, "layers.") ? own.find('.') : std::string_view::npos;
  int64_t layer = 0;
  return end != std::string_view::npos && absl::SimpleAtoi(std::string(own.substr(0, end)), &layer) && layer >= 0 &&
      layer < config.num_layers();
}

} // namespace distill::hf
