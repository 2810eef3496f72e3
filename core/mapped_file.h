// A file as memory: it is read from the disk where it is looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/files.h"

namespace linnet {

// A regular file, mapped read-only. It stays that file when the path gets another one, which is how
// linnet replaces files. Any thread.
class MappedFile {
 public:
  // Throws Error when it cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return file_.path(); }
  // What it held when it was opened.
  std::string_view bytes() const { return {begin_, bytes_}; }
  // Throws Error when another program cut the file since. To look at bytes that are gone, or that
  // the disk cannot give, is SIGBUS, which ends the program as a kill does: call it shortly before.
  void require_whole() const;
  // Gives the memory of a part back, which would count as the process's own; looked at again, it
  // is read again.
  void release(std::string_view part) const;

 private:
  File file_;
  const char* begin_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace linnet
