// The exception that every part of linnet throws, and the checks that throw it.
#pragma once

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace linnet {

// What kind of failure an error is. Programs and tests look at it; sentences may change.
enum class ErrorCode {
  general,       // none of the others
  unknown_key,   // nothing reads this key
  missing_key,   // a key, option or argument that must be given is not
  repeated,      // a key, name or file is there twice
  wrong_type,    // text for a number, a list for a section
  out_of_range,  // a value, size or count beyond its limits
  unknown_name,  // none of the names that may stand there
  conflict,      // settings, or stored state and settings, that do not go together
  malformed,     // text or a file that is broken, truncated or of another format
  not_found,     // there is no such file, folder, split or entry
  system,        // the operating system refused
};

// What an error is given beside its text: its code, the key it is about ("optim.lr", "--device")
// and its place ("recipe.yaml:3:7", "command line: optim.lr", a path). An error copies them.
struct Cause {
  ErrorCode code = ErrorCode::general;
  std::string_view key = {};
  std::string_view place = {};
};

// A failure with one clear sentence: what was expected, what was found, how to fix it. An error
// about a recipe may hold several problems, a line each; code, key and place are of the first.
class Error : public std::runtime_error {
 public:
  // One thing that is wrong: a Cause that owns its text, and the sentence.
  struct Problem {
    ErrorCode code = ErrorCode::general;
    std::string key, place, text;
  };

  explicit Error(const std::string& text) : Error(Cause(), text) {}
  Error(const Cause& cause, const std::string& text);
  // `problems` must hold at least one.
  Error(std::vector<Problem> problems, const std::string& text);

  const std::vector<Problem>& problems() const { return *problems_; }
  ErrorCode code() const { return problems().front().code; }
  const std::string& key() const { return problems().front().key; }
  const std::string& place() const { return problems().front().place; }
  // Of the first problem, for an error with more words about the same; valid as long as this error.
  Cause cause() const { return {code(), key(), place()}; }

 private:
  std::shared_ptr<const std::vector<Problem>> problems_;  // shared: copying must not throw
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
template <typename... Parts>
void require(bool condition, const Cause& cause, const Parts&... parts) {
  if (!condition) throw Error(cause, concat(parts...));
}

// Throws UsageError with the concatenated parts unless `condition` holds.
template <typename... Parts>
void require_usage(bool condition, const Parts&... parts) {
  if (!condition) throw UsageError(concat(parts...));
}
template <typename... Parts>
void require_usage(bool condition, const Cause& cause, const Parts&... parts) {
  if (!condition) throw UsageError(cause, concat(parts...));
}

}  // namespace linnet
