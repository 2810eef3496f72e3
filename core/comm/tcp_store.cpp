#include "core/comm/tcp_store.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "core/comm/communicator.h"
#include "core/comm/tcp_socket.h"
#include "core/comm/tcp_store_server.h"
#include "core/error.h"
#include "core/log.h"

namespace linnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The server answers at once: it has ended, or stands still, or is none.
constexpr milliseconds kAnswerLimit{5000};
// A port of others may say nothing; it is asked again.
constexpr milliseconds kHelloLimit{1000};

void check_value(const std::string& value) {
  require(value.size() <= kMaxTextBytes, Cause{ErrorCode::out_of_range}, "a value of ",
          value.size(), " bytes is too long for the store: at most ", kMaxTextBytes, " bytes");
}

std::string port_text(const TcpStoreOptions& options) {
  const int last = options.port + options.ports - 1;
  return options.ports == 1 ? concat("port ", options.port)
                            : concat("ports ", options.port, " to ", last);
}

class ServerStore final : public Store {
 public:
  ServerStore(Socket listening, const std::string& token) : server_(std::move(listening), token) {}
  bool add(const std::string& key, const std::string& value) override {
    check_value(value);
    return server_.add(key, value);
  }
  std::optional<std::string> get(const std::string& key) override { return server_.get(key); }
  void remove(const std::string& key) override { server_.remove(key); }
  void wait_for_clients(Deadline deadline) override {
    while (server_.clients() > 0 && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }

 private:
  TcpStoreServer server_;
};

// What it is told, or nothing once the other end has closed or the deadline has passed.
std::optional<StoreMessage> ask(const Socket& socket, const StoreMessage& question,
                                Deadline deadline) {
  std::string out = store_message::bytes_of(question), in;
  // A server that refuses a message may do so before it has seen all of it.
  while (!out.empty() && wait_for(socket, POLLOUT, deadline)) {
    const ssize_t sent = ::send(socket.descriptor(), out.data(), out.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR && errno != EAGAIN) break;
    if (sent > 0) out.erase(0, static_cast<size_t>(sent));
  }
  StoreMessage answer;
  std::array<char, 4096> bytes{};
  while (wait_for(socket, POLLIN, deadline)) {
    const ssize_t count = ::recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) break;
    if (count < 0) continue;
    in.append(bytes.data(), static_cast<size_t>(count));
    const auto taken = store_message::take(in, answer);
    if (taken == store_message::Taken::whole) return answer;
    if (taken == store_message::Taken::too_long) break;
  }
  return std::nullopt;
}

class ClientStore final : public Store {
 public:
  explicit ClientStore(Socket socket) : socket_(std::move(socket)) {}
  bool add(const std::string& key, const std::string& value) override {
    check_value(value);
    return answer({store_message::kAdd, key, value}).kind == store_message::kYes;
  }
  std::optional<std::string> get(const std::string& key) override {
    StoreMessage found = answer({store_message::kGet, key});
    if (found.kind != store_message::kYes) return std::nullopt;
    return std::move(found.value);
  }
  void remove(const std::string& key) override { answer({store_message::kRemove, key}); }

 private:
  StoreMessage answer(const StoreMessage& question) {
    auto found = ask(socket_, question, steady_clock::now() + kAnswerLimit);
    require(found.has_value(), Cause{ErrorCode::system},
            "rank 0, which keeps the store of this job, has ended or stands still; its last lines "
            "say why");
    return *std::move(found);
  }

  Socket socket_;
};

TcpStore server_store(const TcpStoreOptions& options) {
  std::string held;
  for (int port = options.port; port < options.port + options.ports; ++port) {
    for (const SocketAddress& address : addresses_of(options.host, port)) {
      Socket socket = listen_at(address);
      if (socket) {
        if (!held.empty()) {
          log_info("another process, such as torchrun itself, holds port ", held,
                   ": the ranks meet at port ", port);
        }
        return {std::make_unique<ServerStore>(std::move(socket), options.token), address.text()};
      }
      require_usage(errno != EADDRNOTAVAIL, Cause{ErrorCode::conflict, "MASTER_ADDR"}, "rank 0 is ",
                    "not on the machine with the address ", options.host, ": name its own");
      require(errno == EADDRINUSE || errno == EACCES || errno == EAFNOSUPPORT,
              Cause{ErrorCode::system}, "cannot listen at ", options.host, " port ", port, ": ",
              std::generic_category().message(errno));
    }
    held = held.empty() ? std::to_string(port) : concat(options.port, " to ", port);
  }
  throw Error(
      Cause{ErrorCode::conflict, "MASTER_PORT"},
      concat(port_text(options), " of ", options.host, options.ports == 1 ? " is" : " are all",
             " in use or not allowed: name a free one (MASTER_PORT or LINNET_STORE)"));
}

TcpStore client_store(const TcpStoreOptions& options, Deadline deadline) {
  bool refused = false;
  do {
    for (int port = options.port; port < options.port + options.ports; ++port) {
      for (const SocketAddress& address : addresses_of(options.host, port)) {
        const Deadline soon = std::min<Deadline>(deadline, steady_clock::now() + kHelloLimit);
        Socket socket = connect_to(address, soon);
        if (!socket) continue;
        const auto answer =
            ask(socket, {store_message::kHello, store_message::kProtocol, options.token}, soon);
        if (!answer) continue;
        if (answer->kind == store_message::kYes) {
          const std::string own = own_address(socket).text();
          return {std::make_unique<ClientStore>(std::move(socket)), own};
        }
        refused = true;
      }
    }
    if (refused && options.ports == 1) break;
    std::this_thread::sleep_for(milliseconds(refused ? 200 : 20));
  } while (steady_clock::now() < deadline);
  require(!refused, Cause{ErrorCode::conflict, "LINNET_TOKEN"}, "rank ", options.rank,
          ": the store at ", options.host, ", ", port_text(options),
          ", belongs to a job with another token: give all ranks the same LINNET_TOKEN, or this "
          "job another port");
  throw Error(Cause{ErrorCode::system},
              concat("rank ", options.rank, ": no sign of rank 0 at ", options.host, ", ",
                     port_text(options),
                     ", in time; see whether it was started, and what its last lines say"));
}

}  // namespace

TcpStore make_tcp_store(const TcpStoreOptions& options, Deadline deadline) {
  require_usage(options.token.size() <= kMaxTextBytes,
                Cause{ErrorCode::out_of_range, "LINNET_TOKEN"},
                "the job's token must have at most ", kMaxTextBytes, " bytes");
  return options.rank == 0 ? server_store(options) : client_store(options, deadline);
}

}  // namespace linnet
