// This program once more, as a child process whose lines are passed on.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace linnet {

struct ChildSettings {
  // "NAME=value": beside the environment of this process, whose variables of these names they
  // replace.
  std::vector<std::string> variables = {};
  // stderr is for read_error_lines(), and no longer for read_lines().
  bool separate_errors = false;
};

// A child that runs this program with other arguments, in a process group of its own, so that
// Ctrl-C reaches it through its parent alone. It is asked to stop (SIGTERM) when the parent is
// gone. Its stdout and stderr are lines for read_lines().
class ChildProcess {
 public:
  // Starts it. Throws Error when the system has no process or descriptor left.
  explicit ChildProcess(const std::vector<std::string>& arguments,
                        const ChildSettings& settings = {});
  // Ends (SIGKILL) and waits for a child that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The whole lines that came since the last call, without waiting; with the child's end, the last
  // one however it ends.
  std::vector<std::string> read_lines();
  // Of separate errors: those that had come at the last read_lines().
  std::vector<std::string> read_error_lines() { return error_lines_.take_lines(!running_); }
  bool running() const { return running_; }
  // Once it no longer runs: its exit code, or 128 + the signal that ended it.
  int exit_code() const { return exit_code_; }
  void signal(int number) const;
  pid_t process() const { return process_; }
  // Descriptors that poll(2) can wait on for lines; -1 after the end, and where errors are not
  // separate.
  int descriptor() const { return lines_.descriptor; }
  int error_descriptor() const { return error_lines_.descriptor; }

 private:
  // The end of a pipe that this process reads.
  struct Stream {
    int descriptor = -1;
    std::string pending;
    void read_all();
    std::vector<std::string> take_lines(bool all);
  };
  void close_streams();

  pid_t process_ = -1;
  bool running_ = true;
  int exit_code_ = 0;
  Stream lines_, error_lines_;
};

}  // namespace linnet
