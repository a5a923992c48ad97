#pragma once

#include <string>

namespace distill::sharding {

// The numeric address of this host from which packets for `host` would leave, to which `host` can send its answers;
// loopback for "localhost". Throws c10::Error if the name is not known or there is no route.
std::string address_towards(const std::string& host);

} // namespace distill::sharding
