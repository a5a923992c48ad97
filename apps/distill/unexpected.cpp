#include "apps/distill/unexpected.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <utility>
#include <vector>

#include "trainer/config/suggest.h"

namespace distill::cli {

namespace {

constexpr size_t kLeastPrefix = 3;

// Names that other tools have for a command or an option, each with our name.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"run", "train"},
    {"fit", "train"},
    {"finetune", "train"},
    {"test", "eval"},
    {"validate", "eval"},
    {"info", "inspect"},
    {"show", "inspect"},
    {"describe", "inspect"},
    {"check", "verify"},
    {"convert", "export"},
    {"save", "export"},
    {"merge", "export"},
    {"memory", "plan"},
    {"estimate", "plan"},
    {"profile", "profile_memory"},
    {"cfg", "config"},
    {"continue", "resume"},
    {"resume_from_checkpoint", "resume_from"},
    {"force", "overwrite"},
    {"check_only", "dry_run"},
    {"output", "out"},
    {"model", "student"},
    {"dataset", "data"},
    {"world_size", "ranks"},
    {"nproc", "ranks"},
    {"nproc_per_node", "ranks_per_node"},
};

std::string in_snake_case(const std::string& name) {
  return absl::StrReplaceAll(name, {{"-", "_"}});
}

// The one of `names` that was probably meant by `written`, without dashes at its begin; empty: no suggestion.
std::string closest(const std::string& written, const std::vector<std::string>& names) {
  const std::string wanted = in_snake_case(written);
  std::vector<std::string> candidates;
  for (const std::string& name : names) {
    candidates.push_back(in_snake_case(name));
  }
  std::string found = config::closest_name(wanted, candidates);
  for (const auto& [other, ours] : kElsewhere) {
    if (found.empty() && wanted == other) {
      found = std::string(ours);
    }
  }
  for (const std::string& candidate : candidates) {
    const bool prefix = absl::StartsWith(candidate, wanted) || absl::StartsWith(wanted, candidate);
    if (found.empty() && std::min(wanted.size(), candidate.size()) >= kLeastPrefix && prefix) {
      found = candidate;
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (candidates[i] == found) {
      return names[i];
    }
  }
  return "";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& own = option->get_lnames();
    names.insert(names.end(), own.begin(), own.end());
  }
  return names;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// "distill" or "distill plan".
std::string call_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : absl::StrCat(app.get_parent()->get_name(), " ", app.get_name());
}

std::string explain_option(const CLI::App& root, const CLI::App& app, const std::string& argument) {
  const std::string written = argument.substr(0, argument.find('='));
  const std::string name(absl::string_view(written).substr(written.find_first_not_of('-')));
  const std::string problem = absl::StrCat(written, ": `", call_of(app), "` has no such option");
  const std::vector<std::string> own = option_names(app);
  if (std::find(own.begin(), own.end(), name) != own.end()) {
    return absl::StrCat(problem, "; did you mean --", name, "?");
  }
  std::vector<std::string> homes;
  for (const CLI::App* command : commands_of(root)) {
    const std::vector<std::string> names = option_names(*command);
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      homes.push_back(absl::StrCat("`", call_of(*command), "`"));
    }
  }
  const std::string close = closest(name, own);
  if (!homes.empty()) {
    return absl::StrCat(problem, "; it is an option of ", absl::StrJoin(homes, ", "));
  }
  return close.empty() ? problem : absl::StrCat(problem, "; did you mean --", close, "?");
}

std::string explain_word(const CLI::App& app, const std::string& argument) {
  if (absl::EndsWith(argument, ".yaml") || absl::EndsWith(argument, ".yml")) {
    return absl::StrCat(
        argument, ": a configuration file is given with --config; did you mean --config ", argument, "?");
  }
  if (absl::StrContains(argument, '=')) {
    return absl::StrCat(argument, ": a key is overridden with --set; did you mean --set ", argument, "?");
  }
  if (app.get_parent() != nullptr) {
    return absl::StrCat(argument, ": `", call_of(app), "` expects no such argument");
  }
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) {
    names.push_back(command->get_name());
  }
  const std::string close = closest(argument, names);
  return absl::StrCat(
      argument, ": no such command; ",
      close.empty() ? absl::StrCat("the commands are ", absl::StrJoin(names, ", "))
                    : absl::StrCat("did you mean `", app.get_name(), " ", close, "`?"));
}

} // namespace

std::string explain_unexpected(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  for (const CLI::App* part : {&app, given.empty() ? &app : static_cast<const CLI::App*>(given[0])}) {
    for (const std::string& argument : part->remaining()) {
      if (argument.find_first_not_of('-') == std::string::npos) {
        continue; // "--"
      }
      return argument[0] == '-' ? explain_option(app, *part, argument) : explain_word(*part, argument);
    }
  }
  return "";
}

} // namespace distill::cli
