// This program once more, as a child process whose lines are passed on.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace linnet {

// A child that runs this program with other arguments, in a process group of its own, so that
// Ctrl-C reaches it through its parent alone. It is asked to stop (SIGTERM) when the parent is
// gone. Its stdout and stderr are lines for read_lines().
class ChildProcess {
 public:
  // Starts it. Throws Error when the system has no process or descriptor left.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  // Ends (SIGKILL) and waits for a child that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The whole lines that came since the last call, without waiting; with the child's end, the last
  // one however it ends.
  std::vector<std::string> read_lines();
  bool running() const { return running_; }
  // Once it no longer runs: its exit code, or 128 + the signal that ended it.
  int exit_code() const { return exit_code_; }
  void signal(int number) const;
  // A descriptor that poll(2) can wait on for lines; -1 after the end.
  int descriptor() const { return descriptor_; }

 private:
  bool read_some();
  std::vector<std::string> take_lines(bool all);

  pid_t process_ = -1;
  int descriptor_ = -1;
  bool running_ = true;
  int exit_code_ = 0;
  std::string pending_;
};

}  // namespace linnet
