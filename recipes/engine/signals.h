// SIGTERM, SIGUSR1 and SIGINT as a polite request: finish the step, save, exit with code 3.
#pragma once

namespace linnet {

// Installs handlers, for programs that train inside a larger process.
void install_stop_handlers();
// For the program's start, before it has other threads: these signals are blocked in this thread
// and all that it starts, and received by a thread of their own, so that none interrupts a
// computation. (Of 24 stops with handlers on computing
// threads 5 aborted on a damaged heap, of 57 without them none; the cause is not known.) A second
// SIGINT ends the program at once.
void watch_stop_signals();
// The signal received since, or 0.
int stop_signal();
// Forgets a received signal (tests).
void clear_stop_signal();

}  // namespace linnet
