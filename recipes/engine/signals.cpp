#include "recipes/engine/signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

namespace linnet {
namespace {

constexpr std::array kStopSignals{SIGTERM, SIGUSR1, SIGINT};

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "request_stop may be called by a handler");

}  // namespace

void watch_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      if (signal == SIGINT && received == SIGINT) _exit(128 + SIGINT);
      received = signal;
    }
  }).detach();
}

void request_stop(int signal) {
  received = signal;
}

int stop_signal() {
  return received;
}

void clear_stop_signal() {
  received = 0;
}

}  // namespace linnet
