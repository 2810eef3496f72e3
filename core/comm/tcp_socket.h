// TCP sockets and the messages of a store between them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "core/comm/store.h"

namespace linnet {

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  // Without the port.
  std::string text() const;
};

// The addresses of a name or number. Throws UsageError where there is none.
std::vector<SocketAddress> addresses_of(const std::string& host, int port);
// The address of this machine's end.
SocketAddress own_address(const Socket& socket);

// The result has no descriptor, and errno the reason, where it does not succeed. No call on it
// waits.
Socket listen_at(const SocketAddress& address);
Socket connect_to(const SocketAddress& address, Deadline deadline);
// Until one of these events of poll(2); false once `deadline` has passed.
bool wait_for(const Socket& socket, short events, Deadline deadline);

// One question or answer. As bytes: kind, length of the key in one byte, of the value in four, the
// highest first, key, value.
struct StoreMessage {
  char kind = 0;
  std::string key = {}, value = {};
};
namespace store_message {
inline constexpr char kHello = 'h', kAdd = 'a', kGet = 'g', kRemove = 'r';  // questions
inline constexpr char kYes = 'y', kNo = 'n', kTooLong = 'l';                // answers
inline constexpr const char* kProtocol = "linnet-store-1";                  // key of a hello

std::string bytes_of(const StoreMessage& message);
enum class Taken { whole, part, too_long };
// Takes the first message off the front of `bytes` where it is there as a whole; too_long as soon
// as its length says so.
Taken take(std::string& bytes, StoreMessage& message);
}  // namespace store_message

}  // namespace linnet
