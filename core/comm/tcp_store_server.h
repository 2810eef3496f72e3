// Rank 0's side of a store over TCP.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/comm/tcp_socket.h"

namespace linnet {

// Answers on a thread of its own. Connections that do not begin with the token are closed, and so
// are those that send what is no message, or a longer one than a value may be.
class TcpStoreServer {
 public:
  TcpStoreServer(Socket listening, std::string token);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  bool add(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key);
  void remove(const std::string& key);
  // Ranks that are connected.
  int clients() const { return clients_; }

 private:
  struct Client {
    Socket socket;
    Deadline hello_by;
    bool welcome = false;
    std::string in = {}, out = {};
  };
  void serve();
  bool serve_client(Client& client, short events);
  bool read(Client& client) const;
  bool answer_all(Client& client);
  StoreMessage answer(const StoreMessage& question);

  Socket listening_;
  std::string token_;
  Socket stop_here_, stop_there_;  // a pipe
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::atomic<int> clients_{0};
  bool refused_ = false;  // another token
  std::thread thread_;
};

}  // namespace linnet
