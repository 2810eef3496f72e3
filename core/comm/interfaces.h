// Network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace linnet {

struct NetworkInterface {
  std::string name, address;
};

// Those that are up, one entry for every IP address of them; empty where the system does not tell.
std::vector<NetworkInterface> network_interfaces();

}  // namespace linnet
