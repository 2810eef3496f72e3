#include "core/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kStopSignals{SIGTERM, SIGUSR1, SIGINT};
constexpr std::chrono::milliseconds kSameRequest{200};

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free, "request_stop may be called by a handler");
std::atomic<bool> watching{false};
thread_local bool interruptible = false;

struct Registry {
  std::mutex mutex;
  std::atomic<int> holds{0};  // changes under the mutex
  std::vector<const std::function<void()>*> cleanups;
};

// Never destroyed: a signal may come until the very end.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStopSignals) sigaddset(&signals, signal);
  return signals;
}

// Unless the program is held. The lock is never given back: whoever would hold the program now, or
// register or forget a cleanup, waits for its end.
void end_program() {
  Registry& all = registry();
  std::unique_lock lock(all.mutex);
  if (all.holds > 0) return;
  for (const auto* cleanup : all.cleanups) {
    try {
      (*cleanup)();
    } catch (...) {  // such as an Error of a temporary that was just renamed
    }
  }
  erase_progress();
  log_info("stopped by signal ", requested);
  _exit(kStopped);
}

// On a thread of its own, so that a second signal is received while the program ends.
void begin_end() {
  try {
    std::thread(end_program).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    end_program();
  }
}

}  // namespace

void block_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void watch_stop_signals() {
  watching = true;
  std::thread([signals = stop_signals()] {
    Clock::time_point first;
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      if (requested == 0) {
        requested = signal;
        first = Clock::now();
        begin_end();
      } else if (Clock::now() - first > kSameRequest) {
        _exit(128 + signal);
      }
    }
  }).detach();
}

void request_stop(int signal) {
  requested = signal;
}

int stop_signal() {
  return requested;
}

void clear_stop_signal() {
  requested = 0;
}

HoldStop::HoldStop() {
  const std::lock_guard lock(registry().mutex);
  ++registry().holds;
}

HoldStop::~HoldStop() {
  const std::lock_guard lock(registry().mutex);
  --registry().holds;
}

void end_if_stopping() {
  if (watching && requested != 0) end_program();
}

StopCleanup::StopCleanup(std::function<void()> action) : action_(std::move(action)) {
  const std::lock_guard lock(registry().mutex);
  registry().cleanups.push_back(&action_);
}

StopCleanup::~StopCleanup() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().cleanups, &action_);
}

Interruptible::Interruptible() : outer_(std::exchange(interruptible, true)) {}

Interruptible::~Interruptible() {
  interruptible = outer_;
}

void interruption_point() {
  if (interruptible && requested != 0 && registry().holds > 0) throw Interrupted();
}

}  // namespace linnet
