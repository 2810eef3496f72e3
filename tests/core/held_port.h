// Ports of the loopback address.
#pragma once

#include <netinet/in.h>

#include "core/comm/tcp_socket.h"

namespace linnet::test {

// Another process's, which says nothing to those who connect.
struct HeldPort {
  HeldPort() : socket(listen_at(addresses_of("127.0.0.1", 0).front())) {
    const SocketAddress own = own_address(socket);
    port = ntohs(reinterpret_cast<const sockaddr_in*>(&own.bytes)->sin_port);
  }
  Socket socket;
  int port = 0;
};

inline int free_port() {
  return HeldPort().port;
}

}  // namespace linnet::test
