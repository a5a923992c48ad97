#pragma once

#include <absl/types/span.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

// Shell commands with placeholders such as {model}; {{ and }} stand for single braces.
namespace distill::config {

// The placeholders of onpolicy.command, onpolicy.server and onpolicy.retokenize.
inline constexpr std::string_view kCommandPlaceholders[] = {"model", "prompts", "output", "round", "version"};
inline constexpr std::string_view kServerPlaceholders[] = {"model"};
inline constexpr std::string_view kRetokenizePlaceholders[] = {"completions", "output"};

// For messages: "{model}, {prompts}, ...".
std::string placeholder_text(absl::Span<const std::string_view> names);
// The first placeholder in the text that is none of these, or a brace without its other half; nullopt: there is none.
std::optional<std::string> unknown_placeholder(const std::string& command, absl::Span<const std::string_view> names);
bool has_placeholder(const std::string& command, const std::string& name);

// The command with each placeholder replaced by its value, quoted for a POSIX shell. All placeholders of the command
// must have a value.
std::string fill_placeholders(const std::string& command, const std::map<std::string, std::string>& values);

} // namespace distill::config
