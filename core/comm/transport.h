// Messages between ranks, of which collective operations are made.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "core/comm/store.h"

namespace linnet {

// Thrown by a Transport; MessageCommunicator makes the Error of it.
struct PeerLost {
  int rank;
  bool in_time;  // false: its deadline has passed
};

// Messages of one lane between two ranks arrive in the order in which they are sent; each is
// received with its length.
class Transport {
 public:
  virtual ~Transport() = default;

  // A message on its way. Its memory must live until it has ended, or this object has.
  class Message {
   public:
    virtual ~Message() = default;
    // Until it was sent or received. Throws PeerLost.
    virtual void wait(Deadline deadline) = 0;
  };

  // Both throw PeerLost.
  virtual std::unique_ptr<Message> send(int to, int lane, const void* bytes, size_t count) = 0;
  virtual std::unique_ptr<Message> receive(int from, int lane, void* bytes, size_t count) = 0;
};

// Whether this build has Gloo.
bool has_gloo();

// Gloo's, over TCP. Addresses are exchanged through `store`. `interface` is a network interface of
// this machine; empty: the loopback address. Throws Error where the interface does not exist, a
// rank does not connect in time, or this build has no Gloo.
std::unique_ptr<Transport> make_gloo_transport(int rank, int size, Store& store,
                                               const std::string& interface, Deadline deadline);

}  // namespace linnet
