#include "trainer/device/outside_memory.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "trainer/device/memory_use.h"

namespace distill::device {

std::string OutsideMemory::text() const {
  return absl::StrFormat(
      "%s outside the allocator (%s: driver and libraries %s, communicators %s)%s", bytes_text(total()),
      measured ? "measured" : "assumed", bytes_text(context), bytes_text(communicators),
      others > 0 ? absl::StrCat("; other processes use ", bytes_text(others)) : "");
}

} // namespace distill::device
