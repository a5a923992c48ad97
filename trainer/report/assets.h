#pragma once

// The page's plain sources (report.html, report.css and the scripts that CMakeLists.txt lists), embedded by
// embed.cmake.
namespace distill::report {

extern const char* const kPageTemplate; // with @CSS@, @DATA@ and @JS@, in this order
extern const char* const kPageStyle;
extern const char* const kPageScript;

} // namespace distill::report
