#define DISTILL_ROWS_NAMESPACE portable
#include "losses/rows_cpu_kernel.h"
