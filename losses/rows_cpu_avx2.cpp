#define DISTILL_ROWS_NAMESPACE avx2
#include "losses/rows_cpu_kernel.h"
