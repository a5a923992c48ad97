#include "trainer/config/dump.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "data/base/durable_file.h"
#include "trainer/config/field.h"
#include "trainer/config/teachers.h"

namespace distill::config {

std::string dump(const Config& config) {
  std::string text = std::string(kDumpHeader) + "\n";
  for (const Section& section : sections()) {
    std::string body;
    for (const Field& field : section.fields) {
      if (applies_to_run(field, config)) {
        absl::StrAppend(&body, "  ", field.name, ": ", to_yaml(field, config), "\n");
      }
    }
    absl::StrAppend(
        &text, section.is_value() ? absl::StripPrefix(body, "  ") : absl::StrCat(section.name, ":\n", body));
  }
  return text;
}

std::vector<std::string> differences(const Config& before, const Config& after) {
  std::vector<std::string> out;
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) {
      const std::string was = to_yaml(field, before);
      const std::string is = to_yaml(field, after);
      if (was != is) {
        out.push_back(absl::StrCat(field.key(), ": ", was, " -> ", is));
      }
    }
  }
  return out;
}

absl::Status write_config(const Config& config, const std::string& path) {
  return base::replace_file(path, dump(config));
}

} // namespace distill::config
