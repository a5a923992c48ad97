#define DISTILL_ADAMW_NAMESPACE portable
#include "trainer/optim/adamw_lanes.h"
