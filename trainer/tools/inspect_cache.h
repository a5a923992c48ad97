#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/tools/inspect.h"

namespace distill::trainer {

// Describes a teacher's cache: what a row is, how many there are, of which teacher and of which data, and whether that
// data is still where it was. With a choice of documents, their tokens and what the teacher says at each of them. The
// tokenizer is the cache's own where the request names none. InvalidArgument: an option that caches do not have, or a
// document that does not exist. FailedPrecondition: the data of the documents is not there any more. DataLoss: a
// damaged part.
absl::StatusOr<std::string> inspect_cache(const InspectRequest& request);

} // namespace distill::trainer
