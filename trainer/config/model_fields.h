#pragma once

#include <vector>

#include "trainer/config/field.h"

namespace distill::config {

// The keys of the sections that describe the models: student and teacher, the teacher's cache, and the checks of
// float8.
std::vector<Field> student_fields();
std::vector<Field> lora_fields();
std::vector<Field> teacher_fields();
std::vector<Field> teacher_list_fields();
std::vector<Field> cache_fields();
std::vector<Field> float8_fields();

} // namespace distill::config
