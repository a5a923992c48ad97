#define DISTILL_ROWS_NAMESPACE portable
#include "losses/rows/cpu/row_kernel_body.h"
#include "losses/rows/cpu/sparse_kernel_body.h"
