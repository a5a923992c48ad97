#pragma once

#include <cstdint>
#include <string>

namespace distill::sharding {

// A TCP socket bound to `port` of one address of this machine, so that the server on it cannot be reached through the
// others. `host`: "localhost" or a numeric address. Returns the descriptor; -1 where `host` is another name, which the
// ranks may resolve differently, or not an address of this machine, or where the port is taken: the caller then listens
// on all addresses.
int bind_to_one_address(const std::string& host, int64_t port);

} // namespace distill::sharding
