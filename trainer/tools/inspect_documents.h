#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/tools/document_view.h"
#include "trainer/tools/inspect.h"

namespace distill::trainer {

// Describes the token shards at request.path and shows their documents; see inspect().
absl::StatusOr<std::string> inspect_token_data(const InspectRequest& request);

// Returns the range that the request names, of `total` documents; the first few if it names none. InvalidArgument: the
// option.
absl::StatusOr<DocumentRange> chosen_documents(const InspectRequest& request, int64_t total);

} // namespace distill::trainer
