#include "trainer/config/command_template.h"

#include <gtest/gtest.h>

namespace distill::config {
namespace {

TEST(CommandTemplate, PlaceholdersAreReplacedByQuotedValues) {
  EXPECT_EQ(
      fill_placeholders("run --model {model} --out={output}.x", {{"model", "/a b/c"}, {"output", "it's"}}),
      "run --model '/a b/c' --out='it'\\''s'.x");
  EXPECT_EQ(fill_placeholders("awk '{{print $1}}' {prompts}", {{"prompts", "p"}}), "awk '{print $1}' 'p'");
}

TEST(CommandTemplate, UnknownOnesAndSingleBracesAreFound) {
  const auto unknown = [](const std::string& command) { return unknown_placeholder(command, kCommandPlaceholders); };
  EXPECT_EQ(unknown("{model} {prompts} {output} {round} {version} {{x}}"), std::nullopt);
  EXPECT_EQ(unknown("a {modle} {x}"), "{modle}");
  EXPECT_EQ(unknown("a {model"), "{model");
  EXPECT_EQ(unknown("a } b"), "} b");
  EXPECT_EQ(unknown_placeholder("{model} {prompts}", kServerPlaceholders), "{prompts}");
  EXPECT_EQ(placeholder_text(kRetokenizePlaceholders), "{completions}, {output}");
  EXPECT_TRUE(has_placeholder("a {output}", "output"));
  EXPECT_FALSE(has_placeholder("a {{output}}", "output"));
}

} // namespace
} // namespace distill::config
