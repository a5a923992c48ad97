#include "trainer/device/allocator_kind.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <cstdlib>

namespace distill::device {
namespace {

constexpr const char* kKey = "expandable_segments";

// The value of a key of the form "key:value" in a comma-separated list; nullopt: it is not there.
std::optional<std::string> value_of(const std::string& settings, const std::string& key) {
  for (const absl::string_view part : absl::StrSplit(settings, ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(pair.first) == key) {
      return std::string(absl::StripAsciiWhitespace(pair.second));
    }
  }
  return std::nullopt;
}

} // namespace

const char* allocator_text(AllocatorKind kind) {
  return kind == AllocatorKind::kExpandable ? "expandable segments" : "segments of fixed size";
}

AllocatorSettings allocator_settings(AllocatorKind wanted, const char* variable, const char* value) {
  AllocatorSettings settings{.kind = wanted};
  const std::string given = value == nullptr ? "" : value;
  if (const auto chosen = value_of(given, kKey)) {
    settings.kind = *chosen == "True" ? AllocatorKind::kExpandable : AllocatorKind::kSegments;
    settings.text = given;
    settings.by_user = true;
    settings.note = absl::StrCat("by ", variable, "=", given);
    return settings;
  }
  settings.text =
      absl::StrCat(given, given.empty() ? "" : ",", kKey, ":", wanted == AllocatorKind::kExpandable ? "True" : "False");
  if (!given.empty()) {
    settings.note = absl::StrCat(variable, "=", given, " applies too; the memory plan does not know it");
  }
  return settings;
}

AllocatorSettings allocator_settings(AllocatorKind wanted) {
  for (const char* variable : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* value = std::getenv(variable)) {
      return allocator_settings(wanted, variable, value);
    }
  }
  return allocator_settings(wanted, nullptr, nullptr);
}

} // namespace distill::device
