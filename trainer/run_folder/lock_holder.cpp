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

// The PID namespace of this process; 0: it is not known.
int64_t own_pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<int64_t>(info.st_ino) : 0;
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
  holder.pid_namespace = own_pid_namespace();
  return holder;
}

std::string LockHolder::json() const {
  Json json;
  json["host"] = host;
  json["pid"] = pid;
  json["since"] = since;
  json["command"] = command;
  json["pid_namespace"] = pid_namespace;
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
  holder.pid_namespace = integer_member(*json, "pid_namespace");
  return holder.pid > 0 && !holder.host.empty() ? std::optional(holder) : std::nullopt;
}

std::string LockHolder::text() const {
  const auto shown = [](const std::string& value) { return absl::Utf8SafeCEscape(shortened(value, kShownCommand)); };
  return absl::StrCat("process ", pid, " on host ", shown(host), " since ", shown(since), " (", shown(command), ")");
}

bool LockHolder::is_on_this_host() const {
  return host == own_host();
}

bool LockHolder::is_ending() const {
  if (!is_on_this_host() || pid_namespace == 0 || pid_namespace != own_pid_namespace()) {
    return false;
  }
  // As proc(5) numbers the fields of /proc/PID/stat: the name, which may hold anything, ends with the last parenthesis.
  const std::string line = first_line(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 3, kFlags = 9;
  constexpr int64_t kExiting = 0x4; // PF_EXITING of linux/sched.h
  int64_t flags = 0;
  return fields.size() > kFlags - kState && absl::SimpleAtoi(fields[kFlags - kState], &flags) &&
      ((flags & kExiting) != 0 || fields[0] == "Z" || fields[0] == "X");
}

} // namespace distill::trainer
