#include "trainer/launch/death.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <csignal>
#include <cstring>
#include <fstream>

namespace distill::launch {
namespace {

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  const char* description = ::sigdescr_np(number);
  return absl::StrCat(
      "signal ", number, name != nullptr ? absl::StrCat(" (SIG", name, ": ", description, ")") : std::string());
}

// "rank 1 was killed by signal 9 (SIGKILL: Killed) in step 12, phase backward"; `verb`: "killed by".
std::string what_happened(const Death& death, const char* verb) {
  return absl::StrCat(
      "distill: ", death.process, " was ", verb, " ", signal_text(death.signal), death.place.empty() ? "" : " ",
      death.place);
}

std::string killer_text(const std::optional<int64_t>& out_of_memory_kills) {
  constexpr const char* kAsk = "`dmesg -T | grep -i 'killed process'`";
  if (!out_of_memory_kills) {
    return absl::StrCat("; distill did not send it; ", kAsk, " says whether the host's memory ran out");
  }
  if (*out_of_memory_kills > 0) {
    return absl::StrCat(
        "; meanwhile the kernel has ended ", *out_of_memory_kills,
        *out_of_memory_kills == 1 ? " process" : " processes",
        " of this machine for lack of host memory, probably this one: ", kAsk,
        " names them, and `distill plan` says how much host memory the run needs");
  }
  return "; distill did not send it, and the kernel has ended no process of this machine for lack of memory meanwhile: "
         "a user, a job scheduler or a container's runtime has sent it";
}

// Who may have sent the signal, and how to find out.
std::string sender_text(const Death& death) {
  switch (death.signal) {
    case SIGKILL:
      return killer_text(death.out_of_memory_kills);
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
      return absl::StrCat(
          ": the program itself failed", death.dumped_core ? ", and has written a core file" : "",
          death.signal == SIGBUS ? "; a file of data or of a model that gets shorter while it is read has this effect"
                                 : "");
    default:
      return "; distill did not send it";
  }
}

} // namespace

std::optional<int64_t> out_of_memory_kills() {
  std::ifstream file("/proc/vmstat");
  for (std::string line; std::getline(file, line);) {
    absl::string_view count = line;
    int64_t kills = 0;
    if (absl::ConsumePrefix(&count, "oom_kill ") && absl::SimpleAtoi(count, &kills)) {
      return kills;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> out_of_memory_kills_since(const std::optional<int64_t>& before) {
  const std::optional<int64_t> now = out_of_memory_kills();
  return now && before ? std::optional<int64_t>(*now - *before) : std::nullopt;
}

std::string killed_text(const Death& death) {
  return absl::StrCat(what_happened(death, "killed by"), sender_text(death));
}

std::string ended_text(const Death& death, const std::string& failed) {
  return absl::StrCat(what_happened(death, "ended by distill with"), ", since ", failed, " had failed");
}

} // namespace distill::launch
