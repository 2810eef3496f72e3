// A folder that lives as long as a test, the message of an expected error, peaks of memory.
#pragma once

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <functional>
#include <string>

#include "core/error.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet::test {

class TemporaryFolder : public ScratchDirectory {
 public:
  // Writes a file, making its folders; returns its path.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = *this / name;
    create_directories(parent_path(path));
    write_file(path, text);
    return path;
  }
};

// The most memory that this process had at once.
inline double peak_mib() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Runs `body`, expects an E (Error by default) and returns its message.
template <typename E = Error>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace linnet::test
