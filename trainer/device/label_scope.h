#pragma once

#include "trainer/device/memory_use.h"

namespace distill::device {

// Blocks allocated by this thread while it lives are of this category, unless they are labelled (memory_tracker.h).
class LabelScope {
 public:
  explicit LabelScope(Category category);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  Category before_;
};

// The category of the thread's innermost LabelScope.
Category current_category();

} // namespace distill::device
