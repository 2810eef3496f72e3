// Collective operations on the CPU, made of messages between every two ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/comm/store.h"

namespace linnet {

struct CommunicatorOptions {
  int rank = 0, size = 1;
  // Of connecting, then of each operation.
  std::chrono::milliseconds time_limit = kDefaultTimeLimit;
  // A network interface of this machine; empty: the loopback address.
  std::string interface = {};
};

// Waits until all ranks have come to the store, and connects them through Gloo. Throws Error when
// one does not come within the limit, is another build of linnet, or asks for another size; and
// when the store holds what another job has left there.
std::unique_ptr<Communicator> make_gloo_communicator(const CommunicatorOptions& options,
                                                     std::unique_ptr<Store> store);

}  // namespace linnet
