// Files that take their place whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "core/files.h"
#include "core/interrupt.h"

namespace linnet {

// A file that is written in parts: temporary file beside `path`; at the end sync, rename, sync of
// the directory. Without commit(), or when a signal ends the program, the temporary is removed and
// what was at `path` stays. Of a link, what it leads to is replaced. Throws Error where the path is
// a directory, a device or a pipe, and when the disk refuses.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::string_view bytes) { file_.write(bytes); }
  // The same from a place on; a gap that is left reads as zeros.
  void write_at(uint64_t offset, std::string_view bytes) {
    file_.seek(offset);
    file_.write(bytes);
  }
  // Brings what was written to the disk: of long files now and then, so that the end is no long
  // wait, in which a signal would not end the program.
  void sync() { file_.sync(); }
  void commit();
  const std::string& temporary() const { return temporary_; }

 private:
  std::string path_, temporary_;
  StopCleanup cleanup_;
  File file_;
  bool committed_ = false;
};

}  // namespace linnet
