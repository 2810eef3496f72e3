// A store that rank 0 keeps and the others reach over TCP.
#pragma once

#include <memory>
#include <string>

#include "core/comm/store.h"

namespace linnet {

struct TcpStoreOptions {
  int rank = 0;  // rank 0 keeps the values
  // Rank 0's address: only connections to it are accepted.
  std::string host = "127.0.0.1";
  // Rank 0 takes the first free one of `ports` ports from `port` on, where the others find it by
  // the token, which keeps jobs apart: whoever listens on the way can read it.
  int port = 0, ports = 1;
  std::string token = {};
};

struct TcpStore {
  std::unique_ptr<Store> store;
  // Of this machine, where others reach it.
  std::string address;
};

// Keys have at most 255 bytes. Waits, except on rank 0, until rank 0 is there. Throws UsageError
// where the address is none or not this machine's, or the token is longer than a value; Error where
// no port is free, no store of this token answers by the deadline, or the only port belongs to a
// store with another token.
TcpStore make_tcp_store(const TcpStoreOptions& options, Deadline deadline);

}  // namespace linnet
