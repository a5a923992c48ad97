#pragma once

#include "data/base/enum_names.h"

namespace distill::data {

// How documents become sequences of seq_len tokens.
enum class PackingMode {
  kPack, // whole documents; attention does not cross from one to another
  kConcat, // one stream of tokens that is cut into sequences
};
constexpr auto enum_names(PackingMode) {
  return base::names_of<PackingMode>("pack", "concat");
}

} // namespace distill::data
