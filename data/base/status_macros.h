#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <utility>

// Early returns for functions that return absl::Status or absl::StatusOr. Abseil's own macros are newer than the Abseil
// that Debian 12 has.

// Returns the status of `expression` from the enclosing function unless it is ok.
#define RETURN_IF_ERROR(expression)                                     \
  do {                                                                  \
    if (absl::Status status_or_ok = (expression); !status_or_ok.ok()) { \
      return status_or_ok;                                              \
    }                                                                   \
  } while (false)

// ASSIGN_OR_RETURN(const auto file, open(path)): the value of a StatusOr, or a return with its status. `target` is a
// declaration or an assignable expression. The preprocessor would split a declaration with a comma outside parentheses,
// for instance std::map<K, V>: use auto there.
#define ASSIGN_OR_RETURN(target, expression) \
  DISTILL_ASSIGN_OR_RETURN(DISTILL_STATUS_NAME(status_or_, __LINE__), target, expression)

#define DISTILL_STATUS_NAME_OF(prefix, line) prefix##line
#define DISTILL_STATUS_NAME(prefix, line) DISTILL_STATUS_NAME_OF(prefix, line)
#define DISTILL_ASSIGN_OR_RETURN(status_or, target, expression) \
  auto status_or = (expression);                                \
  if (!status_or.ok()) {                                        \
    return std::move(status_or).status();                       \
  }                                                             \
  target = *std::move(status_or)
