#define DISTILL_ROWS_NAMESPACE avx512
#include "losses/rows_cpu_kernel.h"
