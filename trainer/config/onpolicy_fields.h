#pragma once

#include <vector>

#include "trainer/config/field.h"

namespace distill::config {

// The keys of the sections `onpolicy` and `onpolicy_loss`.
std::vector<Field> onpolicy_fields();
std::vector<Field> onpolicy_loss_fields();

} // namespace distill::config
