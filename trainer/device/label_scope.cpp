#include "trainer/device/label_scope.h"

namespace distill::device {
namespace {

thread_local Category scope_category = Category::kWorkspace;

} // namespace

Category current_category() {
  return scope_category;
}

LabelScope::LabelScope(Category category) : before_(scope_category) {
  scope_category = category;
}

LabelScope::~LabelScope() {
  scope_category = before_;
}

} // namespace distill::device
