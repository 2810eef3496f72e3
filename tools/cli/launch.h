// One command in several processes of this machine that compute together.
#pragma once

#include <string>
#include <vector>

#include "core/comm/communicator.h"

namespace linnet::cli {

// The most processes that one launch starts.
inline constexpr int kMaxProcesses = 256;

struct LaunchOptions {
  int procs = 1;
  int threads_per_proc = 0;  // 0: those of this process, divided
  int time_limit_s =
      static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(kDefaultTimeLimit).count());
  int grace_s = 10;
  std::vector<std::string> command;  // of linnet, with its arguments
};

// Starts the processes, waits for all, and returns the exit code: that of the first that failed.
// stdout is that of rank 0; all other lines go to stderr behind the number of their rank.
// Throws UsageError for a command that does not run on several processes.
int launch(const LaunchOptions& options);

}  // namespace linnet::cli
