// One trainer at a time writes to a run directory, and a mark says that the directory is a run's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/interrupt.h"

namespace linnet {

inline constexpr const char* kRunLockFile = "run.lock";

// The file run.lock of a run directory. Its first line, "linnet-run ID", marks the directory as a
// run of linnet; every trainer adds a line that names its process, host and start, and another when
// it ends. While it trains it holds the advisory lock (flock) of the file, which the system takes
// back when the process is gone, however it ended: the next trainer takes over. Who only reads a
// run needs no lock.
class RunLock {
 public:
  // Marks the directory, which must exist, and takes its lock for as long as this lives. Throws
  // UsageError that names the process that has it; Error when the file cannot be written. Where
  // the file system has no locks it warns and goes on.
  explicit RunLock(const std::string& run_directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Of the run, the same for every trainer that continues it.
  const std::string& id() const { return id_; }
  // Another trainer had marked the directory before this one.
  bool marked_before() const { return marked_before_; }

 private:
  void take();
  bool try_lock();
  void announce();
  void append(std::string_view text);
  void append_end();
  void close() noexcept;

  std::string run_directory_, path_, id_;
  int descriptor_ = -1;
  bool marked_before_ = false;
  std::optional<StopCleanup> end_;  // a stop gives the lock up as the destructor does
};

// Whether the directory has the mark.
bool is_marked_as_run(const std::string& directory);

// Whether its run.lock is empty or holds no more than beginnings of the mark. A trainer that was
// cut short there has written nothing else: files beside it are another's.
bool has_unfinished_mark(const std::string& directory);

}  // namespace linnet
