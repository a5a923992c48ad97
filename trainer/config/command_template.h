#pragma once

#include <map>
#include <optional>
#include <string>

// Shell commands with placeholders such as {model}; {{ and }} stand for single braces.
namespace distill::config {

// The placeholders that onpolicy.command may have, for messages: "{model}, {prompts}, ...".
std::string placeholder_names();
// The first placeholder in the text that is none of these, or a brace without its other half; nullopt: there is none.
std::optional<std::string> unknown_placeholder(const std::string& command);
bool has_placeholder(const std::string& command, const std::string& name);

// The command with each placeholder replaced by its value, quoted for a POSIX shell. All placeholders of the command
// must have a value.
std::string fill_placeholders(const std::string& command, const std::map<std::string, std::string>& values);

} // namespace distill::config
