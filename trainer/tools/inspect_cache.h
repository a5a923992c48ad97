#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/tools/inspect.h"

namespace distill::trainer {

// Describes a teacher's cache: the form of its rows, their number, the teacher and the data that they are of, and
// whether that data is still where it was. With a choice of documents, shows their tokens and the teacher's prediction
// at each of them. The tokenizer is the cache's own if the request names none. InvalidArgument: an option that caches
// do not have, or a document that does not exist. FailedPrecondition: the data of the documents is not there any more.
// DataLoss: a damaged part.
absl::StatusOr<std::string> inspect_cache(const InspectRequest& request);

} // namespace distill::trainer
