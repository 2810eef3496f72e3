// SIGTERM, SIGUSR1 and SIGINT as a polite request: finish the step, save, exit with code 3.
#pragma once

namespace linnet {

// For the program's start, before it has other threads: these signals are blocked in this thread
// and all that it starts, and received by a thread of their own. A second SIGINT ends the program
// at once.
//
// No signal handler may run on a thread that computes: see core/gemm_onednn.h.
void watch_stop_signals();
// The same request from inside a larger process: from any thread, or from a signal handler that
// runs on a thread which does not compute.
void request_stop(int signal);
// The signal received or requested since, or 0.
int stop_signal();
// Forgets a request (tests).
void clear_stop_signal();

}  // namespace linnet
