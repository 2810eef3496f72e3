// The only file that sees Gloo.
#include "core/comm/interfaces.h"
#include "core/comm/transport.h"
#include "core/error.h"

#ifdef LINNET_HAVE_GLOO

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <vector>

namespace linnet {
namespace {

using std::chrono::milliseconds;

milliseconds left(Deadline deadline) {
  // Rounded up: who waited for so long has passed it.
  const auto rest = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(rest, milliseconds(1));
}

bool passed(Deadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

// Our store as Gloo wants to see it.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(linnet::Store& store, Deadline deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    require(store_.add(name(key), {data.begin(), data.end()}), Cause{ErrorCode::conflict},
            "the store holds an address of this rank already");
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.wait(name(key), deadline_);
    require(value.has_value(), Cause{ErrorCode::system}, "rank ", key,
            " did not tell its address in time; its last lines say why");
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  // What this rank has added.
  static std::string name(const std::string& key) { return "gloo-" + key; }

 private:
  linnet::Store& store_;
  Deadline deadline_;
};

class GlooMessage final : public Transport::Message {
 public:
  GlooMessage(std::unique_ptr<gloo::transport::UnboundBuffer> buffer, int rank, bool sends)
      : buffer_(std::move(buffer)), rank_(rank), sends_(sends) {}

  void wait(Deadline deadline) override {
    bool arrived = false;
    try {
      const milliseconds rest = left(deadline);
      arrived = sends_ ? buffer_->waitSend(rest) : buffer_->waitRecv(rest);
    } catch (const std::exception&) {  // Gloo's exceptions have no class of their own in common
    }
    if (!arrived) throw PeerLost{rank_, !passed(deadline)};
  }

 private:
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  int rank_;
  bool sends_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(int rank, int size, Store& store, const std::string& interface,
                const std::string& address, Deadline deadline)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    // Gloo writes to sockets whose other end may be gone.
    ::signal(SIGPIPE, SIG_IGN);
    gloo::transport::tcp::attr place;
    place.iface = interface;
    if (interface.empty()) place.hostname = address.empty() ? "127.0.0.1" : address;
    // Asked first: Gloo leaks memory where there is no such interface.
    const std::vector<NetworkInterface> known = network_interfaces();
    const bool there = interface.empty() ||
                       std::any_of(known.begin(), known.end(), [&](const NetworkInterface& one) {
                         return one.name == interface;
                       });
    std::shared_ptr<gloo::transport::Device> device;
    try {
      if (there) device = gloo::transport::tcp::CreateDevice(place);
    } catch (const std::exception&) {
    }
    if (device == nullptr) {
      std::string names;
      for (const NetworkInterface& one : known) {
        names += concat(names.empty() ? "" : ", ", one.name, " ", one.address);
      }
      throw UsageError(
          Cause{ErrorCode::not_found, "LINNET_INTERFACE"},
          concat("this machine has no network interface ",
                 interface.empty() ? "with the address " + place.hostname : "'" + interface + "'",
                 "; it has ", names.empty() ? "none" : names));
    }
    GlooStore addresses(store, deadline);
    context_->setTimeout(left(deadline));
    try {
      context_->connectFullMesh(addresses, device);
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      throw Error(Cause{ErrorCode::system},
                  concat("rank ", rank, " of ", size,
                         " could not connect to all others: one of them has ended, or cannot be "
                         "reached; its last lines say why"));
    }
  }

  std::unique_ptr<Message> send(int to, int lane, const void* bytes, size_t count) override {
    // Gloo only reads from it.
    auto buffer = context_->createUnboundBuffer(const_cast<void*>(bytes), count);
    try {
      buffer->send(to, static_cast<uint64_t>(lane));
    } catch (const std::exception&) {
      throw PeerLost{to, true};
    }
    return std::make_unique<GlooMessage>(std::move(buffer), to, true);
  }

  std::unique_ptr<Message> receive(int from, int lane, void* bytes, size_t count) override {
    auto buffer = context_->createUnboundBuffer(bytes, count);
    try {
      buffer->recv(from, static_cast<uint64_t>(lane));
    } catch (const std::exception&) {
      throw PeerLost{from, true};
    }
    return std::make_unique<GlooMessage>(std::move(buffer), from, false);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

bool has_gloo() {
  return true;
}

std::unique_ptr<Transport> make_gloo_transport(int rank, int size, Store& store,
                                               const std::string& interface,
                                               const std::string& address, Deadline deadline) {
  return std::make_unique<GlooTransport>(rank, size, store, interface, address, deadline);
}

}  // namespace linnet

#else

namespace linnet {

bool has_gloo() {
  return false;
}

std::unique_ptr<Transport> make_gloo_transport(int, int, Store&, const std::string&,
                                               const std::string&, Deadline) {
  throw UsageError(Cause{ErrorCode::not_found},
                   "this build of linnet runs on one process alone: install Gloo (apt-get install "
                   "libgloo-dev), configure and build again");
}

}  // namespace linnet

#endif
