#include "trainer/sharding/listening_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace distill::sharding {
namespace {

// The IPv4 address that a socket is bound to, and its port.
std::pair<std::string, int> bound_to(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(address.sin_family, AF_INET);
  return {inet_ntoa(address.sin_addr), ntohs(address.sin_port)};
}

TEST(ListeningSocket, ANumericAddressOfThisMachineIsTheOnlyOne) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const int fd = bind_to_one_address(host, /*port=*/0);
    ASSERT_GE(fd, 0) << host;
    EXPECT_EQ(bound_to(fd).first, "127.0.0.1");
    ::close(fd);
  }
}

TEST(ListeningSocket, ANameOrTheAddressOfAnotherMachineGivesNone) {
  for (const char* host : {"node0", "", "192.0.2.1", "127.0.0.1.example"}) {
    EXPECT_EQ(bind_to_one_address(host, /*port=*/0), -1) << host;
  }
}

TEST(ListeningSocket, APortThatIsTakenGivesNone) {
  const int fd = bind_to_one_address("127.0.0.1", /*port=*/0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_EQ(bind_to_one_address("127.0.0.1", bound_to(fd).second), -1);
  ::close(fd);
}

} // namespace
} // namespace distill::sharding
