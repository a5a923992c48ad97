#pragma once

#include <optional>
#include <string>

#include "data/base/enum_names.h"

namespace distill::device {

// How libtorch's CUDA caching allocator takes memory from the device.
enum class AllocatorKind {
  kExpandable, // one range of addresses for each pool, to which pages are mapped as they are needed
  kSegments, // a piece of its own for each request that no free piece can meet
};
constexpr auto enum_names(AllocatorKind) {
  return base::names_of<AllocatorKind>("expandable", "segments");
}
const char* allocator_text(AllocatorKind kind); // "expandable segments", for people

// What libtorch is told, and why.
struct AllocatorSettings {
  AllocatorKind kind = AllocatorKind::kExpandable;
  std::string text; // in the syntax of PYTORCH_CUDA_ALLOC_CONF, with everything that the user has set
  bool by_user = false; // an environment variable decides the kind
  std::string note; // what the user should know of it; empty: nothing
};

// The settings for `wanted`, unless one of libtorch's environment variables names the kind: that one wins. `variable`
// and `value`: the variable that libtorch reads, and its content; null: there is none.
AllocatorSettings allocator_settings(AllocatorKind wanted, const char* variable, const char* value);
// The same with the variables of this process. PYTORCH_CUDA_ALLOC_CONF comes before PYTORCH_ALLOC_CONF, as in libtorch.
AllocatorSettings allocator_settings(AllocatorKind wanted);

} // namespace distill::device
