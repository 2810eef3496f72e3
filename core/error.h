// The exception that every part of linnet throws, and the checks that throw it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace linnet {

// A failure with one clear sentence: what was expected, what was found, how to fix it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Unusable input from the user: arguments, recipe, incompatible options. Exit code 2 (Error: 1).
class UsageError : public Error {
 public:
  using Error::Error;
};

// Joins its arguments into one string with operator<<.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error with the concatenated parts unless `condition` holds.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw Error(concat(parts...));
}

// Throws UsageError with the concatenated parts unless `condition` holds.
template <typename... Parts>
void require_usage(bool condition, const Parts&... parts) {
  if (!condition) throw UsageError(concat(parts...));
}

}  // namespace linnet
