// SIGTERM, SIGUSR1 and SIGINT as a request to stop.
//
// The first one ends the program at once, with exit code 3, wherever it is: what was registered
// with StopCleanup is done before (temporaries are removed). Work that has something to save holds
// it (HoldStop), and ends by itself. A second one ends the program in any case, with 128 + signal;
// within 0.2 seconds of the first it counts as the same one, because programs such as timeout(1)
// send each signal twice.
//
// A thread of their own receives them: no signal handler may run on a thread that computes, see
// core/gemm_onednn.h.
#pragma once

#include <functional>

namespace linnet {

// The exit code of a program that was asked to stop.
inline constexpr int kStopped = 3;

// For the program's first line: blocks the signals in this thread, in all that it starts, and in a
// program that takes its place. Those that come are kept until watch_stop_signals().
void block_stop_signals();
// Then, before there are other threads: starts the thread that receives them.
void watch_stop_signals();

// The same request from inside a larger process, which it never ends: work that can be held is
// given up where it would be for a signal. From any thread, or from a signal handler that runs on a
// thread which does not compute.
void request_stop(int signal);
// The signal received or requested since, or 0.
int stop_signal();
// Forgets a request (tests).
void clear_stop_signal();

// While one lives, the first signal does not end the program: its maker looks at stop_signal(), or
// catches Interrupted, and calls end_if_stopping() once nothing is left to save.
class HoldStop {
 public:
  HoldStop();
  ~HoldStop();
  HoldStop(const HoldStop&) = delete;
  HoldStop& operator=(const HoldStop&) = delete;
};

// Ends the program as a first signal does, if one came while it was held. Returns where there was
// none, or where watch_stop_signals() was not called.
void end_if_stopping();

// What is to be done before a signal ends the program while this lives. `action` is called on
// another thread while this one goes on; what it throws is dropped.
class StopCleanup {
 public:
  explicit StopCleanup(std::function<void()> action);
  ~StopCleanup();
  StopCleanup(const StopCleanup&) = delete;
  StopCleanup& operator=(const StopCleanup&) = delete;

 private:
  std::function<void()> action_;
};

// Thrown by interruption_point(). No std::exception: what handles failures must let it pass.
struct Interrupted {};

// While one lives, this thread's work may be given up at its interruption points: nothing that it
// changes outlives it.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  bool outer_;
};

// Throws Interrupted inside of an Interruptible once a stop was requested, if a HoldStop lives,
// whose maker catches it: otherwise the program is ending. Long computations call it between their
// parts.
void interruption_point();

}  // namespace linnet
