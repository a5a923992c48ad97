#include "trainer/launch/end_process.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace distill::launch {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool driver_is_loaded() {
  return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

} // namespace

void end_process(int code) {
  if (kSanitized || driver_is_loaded()) {
    std::exit(code);
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

} // namespace distill::launch
