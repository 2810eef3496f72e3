// Entry point of libFuzzer: times every input, and ends the process for one that takes too long.
#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "core/error.h"
#include "core/log.h"

namespace linnet::fuzz {
namespace {

constexpr double kLimitSeconds = 1;

// Of this thread: what other processes do meanwhile does not count.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double worst_seconds = 0;
int64_t executions = 0, accepted = 0;

void print_summary() {
  std::fprintf(stderr, "executions %lld, accepted %lld, worst time %.1f ms\n",
               static_cast<long long>(executions), static_cast<long long>(accepted),
               1e3 * worst_seconds);
}

}  // namespace

void expect(bool holds, std::string_view promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(promise.size()), promise.data());
  std::abort();
}

std::pair<std::string_view, std::string_view> two_files(std::string_view input) {
  constexpr std::string_view kBetween = "\n====\n";
  const size_t at = input.find(kBetween);
  if (at == std::string_view::npos) return {input, {}};
  return {input.substr(0, at + 1), input.substr(at + kBetween.size())};
}

}  // namespace linnet::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  linnet::set_log_level(linnet::LogLevel::error);
  std::atexit(linnet::fuzz::print_summary);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linnet::fuzz;
  const double start = processor_seconds();
  try {
    read_input({reinterpret_cast<const char*>(data), size});
    ++accepted;
  } catch (const linnet::Error& error) {
    expect(*error.what() != '\0', "an error says something");
  }
  const double seconds = processor_seconds() - start;
  worst_seconds = std::max(worst_seconds, seconds);
  ++executions;
  expect(seconds <= kLimitSeconds, "an input takes at most 1 s");
  return 0;
}
