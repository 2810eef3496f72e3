#include "core/comm/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>

#include "core/comm/communicator.h"
#include "core/error.h"

namespace linnet {

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string SocketAddress::text() const {
  std::array<char, NI_MAXHOST> host{};
  const int problem =
      ::getnameinfo(get(), length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return problem == 0 ? host.data() : "unknown";
}

std::vector<SocketAddress> addresses_of(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  require_usage(problem == 0, Cause{ErrorCode::not_found, "MASTER_ADDR"}, "'", host,
                "' is no address that this machine knows: ", ::gai_strerror(problem));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.length = one->ai_addrlen;
    std::copy_n(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen,
                reinterpret_cast<char*>(&address.bytes));
  }
  return addresses;
}

SocketAddress own_address(const Socket& socket) {
  SocketAddress address;
  address.length = sizeof(address.bytes);
  ::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address.bytes), &address.length);
  return address;
}

namespace {

Socket open_socket(const SocketAddress& address) {
  return Socket(
      ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

}  // namespace

Socket listen_at(const SocketAddress& address) {
  Socket socket = open_socket(address);
  const int yes = 1;
  const bool listens =
      socket &&
      ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      ::bind(socket.descriptor(), address.get(), address.length) == 0 &&
      ::listen(socket.descriptor(), SOMAXCONN) == 0;
  if (listens) return socket;
  const int reason = errno;
  socket = Socket();
  errno = reason;
  return socket;
}

Socket connect_to(const SocketAddress& address, Deadline deadline) {
  Socket socket = open_socket(address);
  if (!socket) return socket;
  if (::connect(socket.descriptor(), address.get(), address.length) == 0) return socket;
  int problem = errno;
  if (problem == EINPROGRESS) {
    problem = ETIMEDOUT;
    socklen_t length = sizeof(problem);
    if (wait_for(socket, POLLOUT, deadline)) {
      ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &problem, &length);
    }
  }
  if (problem == 0) return socket;
  errno = problem;
  return Socket();
}

bool wait_for(const Socket& socket, short events, Deadline deadline) {
  using std::chrono::milliseconds;
  while (true) {
    const auto left =
        std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd one{socket.descriptor(), events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

namespace store_message {
namespace {

constexpr size_t kHead = 6;

}  // namespace

std::string bytes_of(const StoreMessage& message) {
  std::string bytes{message.kind, static_cast<char>(message.key.size())};
  const size_t length = message.value.size();
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(length >> shift & 0xff);
  return bytes + message.key + message.value;
}

Taken take(std::string& bytes, StoreMessage& message) {
  if (bytes.size() < kHead) return Taken::part;
  const auto byte = [&](size_t at) { return size_t{static_cast<unsigned char>(bytes[at])}; };
  const size_t key = byte(1);
  const size_t value = byte(2) << 24 | byte(3) << 16 | byte(4) << 8 | byte(5);
  if (value > kMaxTextBytes) return Taken::too_long;
  if (bytes.size() < kHead + key + value) return Taken::part;
  message = {bytes[0], bytes.substr(kHead, key), bytes.substr(kHead + key, value)};
  bytes.erase(0, kHead + key + value);
  return Taken::whole;
}

}  // namespace store_message
}  // namespace linnet
