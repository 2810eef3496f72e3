// A folder that lives as long as a test, and the message of an expected error.
#pragma once

#include <gmock/gmock.h>

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
