#pragma once

#include <cstdint>

#include "trainer/optim/adamw_kernel.h"

// The CPU's AdamW step over the elements [begin, end), for each instruction set.
namespace distill::optim {

namespace portable {
void adamw_range(const AdamWArgs& args, int64_t begin, int64_t end);
} // namespace portable
namespace avx2 {
void adamw_range(const AdamWArgs& args, int64_t begin, int64_t end);
} // namespace avx2
namespace avx512 {
void adamw_range(const AdamWArgs& args, int64_t begin, int64_t end);
} // namespace avx512

} // namespace distill::optim
