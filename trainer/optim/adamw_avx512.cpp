#define DISTILL_ADAMW_NAMESPACE avx512
#include "trainer/optim/adamw_lanes.h"
