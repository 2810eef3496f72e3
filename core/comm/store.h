// Where ranks find each other before they are connected: short values by name.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace linnet {

using Deadline = std::chrono::steady_clock::time_point;

// Keys are not empty; values have at most kMaxTextBytes bytes (core/comm/communicator.h). Functions
// throw Error when the store cannot be used, or holds what nobody of this job can have put there.
class Store {
 public:
  virtual ~Store() = default;
  // Adds a value; false, and no change, where the key has one.
  virtual bool add(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Nothing happens where the key has no value.
  virtual void remove(const std::string& key) = 0;

  // The value, as soon as somebody adds it; nothing once `deadline` has passed.
  std::optional<std::string> wait(const std::string& key, Deadline deadline);
};

// A file for every value in `folder`, an absolute path, which is made where it is missing (mode
// 0700; files 0600), and removed at the end where it is empty. Works between machines where all see
// the folder. Throws UsageError where the folder belongs to somebody else or others may enter it.
std::unique_ptr<Store> make_file_store(const std::string& folder);

}  // namespace linnet
