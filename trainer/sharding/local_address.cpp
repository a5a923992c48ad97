#include "trainer/sharding/local_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace distill::sharding {

std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port does not matter: connecting a datagram socket sends nothing, it only looks up the route.
  const int error = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  TORCH_CHECK(error == 0, "the address of '", host, "' cannot be found: ", gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int fd = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    const bool routed = fd >= 0 && ::connect(fd, address->ai_addr, address->ai_addrlen) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0;
    if (fd >= 0) {
      ::close(fd);
    }
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (routed &&
        ::getnameinfo(
            reinterpret_cast<sockaddr*>(&local), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  TORCH_CHECK(false, "no route leads to '", host, "': ", std::strerror(errno));
}

} // namespace distill::sharding
