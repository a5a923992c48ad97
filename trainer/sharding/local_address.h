#pragma once

#include <string>

namespace distill::sharding {

// The numeric address of this host from which packets for `host` would leave, which is one that `host` can answer to;
// loopback for "localhost". Throws c10::Error where the name is not known or no route leads there.
std::string address_towards(const std::string& host);

} // namespace distill::sharding
