// libarchive's reader as an object: it owns the handle, lets callbacks throw, and throws Error.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

struct archive;
struct archive_entry;

namespace linnet {

// What an archive is read from. read() fills the beginning of a span and returns how much, 0 at the
// end; seek() goes to an offset, and is empty where only reading on is possible.
struct ArchiveInput {
  std::function<size_t(std::span<char>)> read;
  std::function<void(uint64_t)> seek{};
  uint64_t bytes = 0;  // in all; needed where seek is given
};

enum class ArchiveFormat { tar, zip, xz };  // xz: one compressed file, as one member

// While one lives, names of members are UTF-8 in this thread, whatever its locale is.
class Utf8Names {
 public:
  Utf8Names();
  ~Utf8Names();
  Utf8Names(const Utf8Names&) = delete;
  Utf8Names& operator=(const Utf8Names&) = delete;

 private:
  void* own_;
  void* outer_ = nullptr;
};

class ArchiveHandle {
 public:
  // `path` is for messages.
  ArchiveHandle(std::string path, ArchiveFormat format, ArchiveInput input);
  ~ArchiveHandle();
  ArchiveHandle(const ArchiveHandle&) = delete;
  ArchiveHandle& operator=(const ArchiveHandle&) = delete;

  // The next member, which the handle owns until the next call; nullptr after the last one. Throws
  // Error naming the archive when it is damaged or truncated, and what the input throws.
  archive_entry* next();
  // Contents of the member; fewer bytes than asked for only at its end. Throws like next().
  size_t read(std::span<char> into);

 private:
  friend struct ArchiveCallbacks;
  // Throws for a result that is no success.
  void check(long long result, const char* doing);

  std::string path_;
  ArchiveFormat format_;
  ArchiveInput input_;
  std::vector<char> buffer_;
  uint64_t position_ = 0;       // of the input
  std::exception_ptr failure_;  // of the input, which must not pass through C
  archive* handle_;
};

}  // namespace linnet
