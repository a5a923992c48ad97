#include "data/base/checksum.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

// The whole library is in its header: nothing to find at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace distill::base {

struct Checksum::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() {
    XXH3_freeState(xxh3);
  }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  reset();
}

Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(const void* data, size_t size) {
  XXH3_64bits_update(state_->xxh3, data, size);
}

uint64_t Checksum::value() const {
  return XXH3_64bits_digest(state_->xxh3);
}

void Checksum::reset() {
  XXH3_64bits_reset(state_->xxh3);
}

uint64_t checksum(const void* data, size_t size) {
  return XXH3_64bits(data, size);
}

std::string checksum_text(uint64_t value) {
  return absl::StrFormat("%016x", value);
}

std::optional<uint64_t> parse_checksum(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, /*base=*/16);
  const bool whole = text.size() == 16 && result.ec == std::errc() && result.ptr == end;
  return whole ? std::optional(value) : std::nullopt;
}

absl::StatusOr<uint64_t> file_checksum(const std::string& path, const ReadProgress& progress) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
  if (fd < 0) {
    const std::string message = absl::StrCat(path, ": cannot open: ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::DataLossError(message);
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::DataLossError(absl::StrCat(path, ": expected a regular file"));
  }
  Checksum sum;
  std::vector<char> buffer(size_t{4} << 20);
  ssize_t count = 0;
  while ((count = ::read(fd, buffer.data(), buffer.size())) != 0) {
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      return absl::DataLossError(absl::StrCat(path, ": cannot read: ", why));
    }
    sum.update(buffer.data(), static_cast<size_t>(count));
    if (progress) {
      progress(count);
    }
  }
  ::close(fd);
  return sum.value();
}

} // namespace distill::base
