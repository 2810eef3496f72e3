// For tests: time and memory that this process took.
#pragma once

#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>

#include "core/sanitizers.h"

namespace linnet::test {

// What a test allows. Sanitizers keep up to 256 MiB of what was freed, and notes about all memory.
inline constexpr int64_t kPeakKibibytes =
    (kAddressSanitizer || kThreadSanitizer ? 1024 : 512) * 1024;

// Whether processor time says something of a release build.
#ifdef NDEBUG
inline constexpr bool kTimed = !kAddressSanitizer && !kThreadSanitizer;
#else
inline constexpr bool kTimed = false;
#endif

inline double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Of this process, since start_peak.
inline int64_t peak_kibibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}
inline void start_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

}  // namespace linnet::test
