#define DISTILL_ADAMW_NAMESPACE avx2
#include "trainer/optim/adamw_lanes.h"
