#include "trainer/run_folder/lock_holder.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/base/json.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxCommand = 1000; // characters
constexpr size_t kShownCommand = 300;
constexpr int kMaxDepth = 2;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string own_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string shortened(const std::string& text, size_t length) {
  return text.size() <= length ? text : text.substr(0, length) + "...";
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command;
  for (std::string argument; std::getline(file, argument, '\0');) {
    absl::StrAppend(&command, command.empty() ? "" : " ", argument);
  }
  return shortened(command, kMaxCommand);
}

// 0: not known.
int64_t own_pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<int64_t>(info.st_ino) : 0;
}

// /proc/PID/stat, as proc(5) numbers its fields.
struct ProcessStat {
  char state = '?'; // field 3
  int64_t flags = 0; // field 9
  int64_t start = 0; // field 22
};

std::optional<ProcessStat> process_stat(int64_t pid) {
  const std::string line = first_line(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = line.rfind(')'); // the name may hold anything
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<std::string> fields = absl::StrSplit(line.substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kFirst = 3, kFlags = 9, kStart = 22;
  ProcessStat stat;
  if (fields.size() <= kStart - kFirst || !absl::SimpleAtoi(fields[kFlags - kFirst], &stat.flags) ||
      !absl::SimpleAtoi(fields[kStart - kFirst], &stat.start)) {
    return std::nullopt;
  }
  stat.state = fields[0][0];
  return stat;
}

std::string string_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t integer_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

} // namespace

LockHolder LockHolder::this_process() {
  LockHolder holder;
  holder.host = own_host();
  holder.pid = ::getpid();
  holder.since = absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone());
  holder.command = own_command();
  holder.boot = first_line("/proc/sys/kernel/random/boot_id");
  holder.pid_namespace = own_pid_namespace();
  const auto stat = process_stat(holder.pid);
  holder.process_start = stat ? stat->start : 0;
  return holder;
}

std::string LockHolder::json() const {
  Json json;
  json["host"] = host;
  json["pid"] = pid;
  json["since"] = since;
  json["command"] = command;
  json["boot"] = boot;
  json["pid_namespace"] = pid_namespace;
  json["process_start"] = process_start;
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

std::optional<LockHolder> LockHolder::parse(const std::string& text) {
  const auto json = base::parse_json(text, "lock file", kMaxDepth);
  if (!json.ok() || !json->is_object()) {
    return std::nullopt;
  }
  LockHolder holder;
  holder.host = string_member(*json, "host");
  holder.pid = integer_member(*json, "pid");
  holder.since = string_member(*json, "since");
  holder.command = string_member(*json, "command");
  holder.boot = string_member(*json, "boot");
  holder.pid_namespace = integer_member(*json, "pid_namespace");
  holder.process_start = integer_member(*json, "process_start");
  return holder.pid > 0 && !holder.host.empty() ? std::optional(holder) : std::nullopt;
}

std::string LockHolder::text() const {
  const auto shown = [](const std::string& value) { return absl::Utf8SafeCEscape(shortened(value, kShownCommand)); };
  return absl::StrCat("process ", pid, " on host ", shown(host), " since ", shown(since), " (", shown(command), ")");
}

bool LockHolder::same_kernel() const {
  return !boot.empty() && boot == first_line("/proc/sys/kernel/random/boot_id") && host == own_host();
}

ProcessState process_state(const LockHolder& holder) {
  if (!holder.same_kernel() || holder.pid_namespace == 0 || holder.pid_namespace != own_pid_namespace()) {
    return ProcessState::kUnknown;
  }
  const auto stat = process_stat(holder.pid);
  if (!stat || stat->start != holder.process_start) {
    return ProcessState::kGone;
  }
  constexpr int64_t kExiting = 0x4; // PF_EXITING of linux/sched.h
  const bool ending = (stat->flags & kExiting) != 0 || stat->state == 'Z' || stat->state == 'X';
  return ending ? ProcessState::kEnding : ProcessState::kRunning;
}

} // namespace distill::trainer
