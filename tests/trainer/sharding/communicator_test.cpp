#include "trainer/sharding/communicator.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "trainer/sharding/listening_socket.h"

namespace distill::sharding {
namespace {

// A rendezvous of one rank, at a port that is free.
std::unique_ptr<Rendezvous> alone() {
  RendezvousOptions options;
  options.master_listen_fd = bind_to_one_address(options.master_addr, 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(::getsockname(options.master_listen_fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  options.master_port = ntohs(address.sin_port);
  return *Rendezvous::join(options);
}

TEST(Communicator, GlooHoldsNoMemoryOnceAnOperationHasReturned) {
  const auto rendezvous = alone();
  const auto group = rendezvous->gloo_group("host", {0});
  int64_t held = 0;
  for (int i = 0; i < 2000; ++i) {
    at::Tensor sum = at::ones({64}), whole = at::empty({64}), part = at::empty({64});
    group->all_reduce(sum);
    group->all_gather(whole, sum);
    group->reduce_scatter(part, whole);
    for (const at::Tensor* tensor : {&sum, &whole, &part}) {
      held += tensor->storage().use_count() == 1 ? 0 : 1;
      ASSERT_EQ(tensor->sum().item<float>(), 64);
    }
  }
  EXPECT_EQ(held, 0);
  group->shutdown();
}

} // namespace
} // namespace distill::sharding
