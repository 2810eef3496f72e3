#include "core/comm/tcp_store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <system_error>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/error.h"
#include "core/log.h"

namespace linnet {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kHelloLimit{5};
constexpr size_t kMaxClients = 65536;
constexpr size_t kMaxUnread = 4 * kMaxTextBytes;  // of answers to a client that does not read

// In a time that does not tell how much of it is right.
bool is_token(const std::string& given, const std::string& token) {
  unsigned difference = given.size() == token.size() ? 0 : 1;
  for (size_t i = 0; i < given.size() && i < token.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ token[i]);
  }
  return difference == 0;
}

}  // namespace

TcpStoreServer::TcpStoreServer(Socket listening, std::string token)
    : listening_(std::move(listening)), token_(std::move(token)) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Cause{ErrorCode::system},
                concat("cannot make a pipe: ", std::generic_category().message(errno)));
  }
  stop_here_ = Socket(ends[0]);
  stop_there_ = Socket(ends[1]);
  thread_ = std::thread([this] { serve(); });
}

TcpStoreServer::~TcpStoreServer() {
  stop_there_ = Socket();  // its closing ends the thread; the temporary takes the descriptor along
  thread_.join();
}

bool TcpStoreServer::add(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  return values_.emplace(key, value).second;
}

std::optional<std::string> TcpStoreServer::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void TcpStoreServer::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  values_.erase(key);
}

void TcpStoreServer::serve() {
  std::list<Client> connections;
  while (true) {
    std::vector<pollfd> waits{{stop_here_.descriptor(), POLLIN, 0},
                              {listening_.descriptor(), POLLIN, 0}};
    for (const Client& client : connections) {
      const int out = client.out.empty() ? 0 : POLLOUT;
      waits.push_back({client.socket.descriptor(), static_cast<short>(POLLIN | out), 0});
    }
    ::poll(waits.data(), waits.size(), 500);
    if (waits[0].revents != 0) return;
    size_t next = 2;
    for (auto client = connections.begin(); client != connections.end();) {
      const short events = waits[next++].revents;
      if (serve_client(*client, events)) {
        ++client;
        continue;
      }
      if (client->welcome) --clients_;
      client = connections.erase(client);
    }
    if (waits[1].revents != 0) {
      Socket socket(
          ::accept4(listening_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket && connections.size() < kMaxClients) {
        connections.push_back({std::move(socket), steady_clock::now() + kHelloLimit});
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
}

// Whether it stays.
bool TcpStoreServer::serve_client(Client& client, short events) {
  if (!client.welcome && steady_clock::now() > client.hello_by) return false;
  const bool open = (events & (POLLIN | POLLHUP | POLLERR)) == 0 || read(client);
  const bool serious = answer_all(client);
  while (!client.out.empty()) {
    const ssize_t sent = ::send(client.socket.descriptor(), client.out.data(), client.out.size(),
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return false;
    }
    client.out.erase(0, static_cast<size_t>(sent));
  }
  return open && serious && client.out.size() <= kMaxUnread;
}

// False at the end of the connection.
bool TcpStoreServer::read(Client& client) const {
  std::array<char, 4096> bytes{};
  while (client.in.size() <= 2 * kMaxTextBytes) {
    const ssize_t count = ::recv(client.socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      client.in.append(bytes.data(), static_cast<size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return count < 0 && errno == EAGAIN;
    }
  }
  return true;
}

// False where the client is none of this job.
bool TcpStoreServer::answer_all(Client& client) {
  using store_message::Taken;
  StoreMessage question;
  while (true) {
    // What does not begin as a hello may be anything, and never end.
    if (!client.welcome && !client.in.empty() && client.in[0] != store_message::kHello) {
      return false;
    }
    const Taken taken = store_message::take(client.in, question);
    if (taken == Taken::part) return true;
    if (taken == Taken::too_long) {
      client.out += store_message::bytes_of({store_message::kTooLong});
      return false;
    }
    if (client.welcome) {
      client.out += store_message::bytes_of(answer(question));
      continue;
    }
    if (question.key != store_message::kProtocol) return false;
    if (!is_token(question.value, token_)) {
      if (!std::exchange(refused_, true)) {
        log_warning("a process that does not know this job's token tried to join it");
      }
      client.out += store_message::bytes_of({store_message::kNo});
      return false;
    }
    client.welcome = true;
    ++clients_;
    client.out += store_message::bytes_of({store_message::kYes});
  }
}

StoreMessage TcpStoreServer::answer(const StoreMessage& question) {
  switch (question.kind) {
    case store_message::kAdd:
      return {add(question.key, question.value) ? store_message::kYes : store_message::kNo};
    case store_message::kGet: {
      const auto value = get(question.key);
      return {value ? store_message::kYes : store_message::kNo, "", value.value_or("")};
    }
    case store_message::kRemove:
      remove(question.key);
      return {store_message::kYes};
    default:
      return {store_message::kNo};
  }
}

}  // namespace linnet
