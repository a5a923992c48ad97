#define DISTILL_ROWS_NAMESPACE avx2
#include "losses/rows/cpu/row_kernel_body.h"
#include "losses/rows/cpu/sparse_kernel_body.h"
