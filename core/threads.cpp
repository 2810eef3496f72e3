#include "core/threads.h"

#include <omp.h>

#include <exception>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/sanitizers.h"

namespace linnet {
namespace {

// More than any machine has; OpenMP crashes on counts that the system cannot start.
constexpr int kMaxThreads = 1024;

// Of the thread: inside a team, loops run on the calling thread alone.
thread_local bool in_team = false;
// All threads that a SmallStep of this thread may take; 0 outside of one.
thread_local int step_threads = 0;

// A member of a team: remembers that it is one, keeps the first exception of all.
class Member {
 public:
  Member(const std::function<void(int, int)>& body, std::exception_ptr& failure,
         std::atomic_flag& failed)
      : body_(body), failure_(failure), failed_(failed) {}

  void run(int member, int members) const {
    const bool before = in_team;
    in_team = true;
    try {
      body_(member, members);
    } catch (...) {
      if (!failed_.test_and_set()) failure_ = std::current_exception();
    }
    in_team = before;
  }

 private:
  const std::function<void(int, int)>& body_;
  std::exception_ptr& failure_;
  std::atomic_flag& failed_;
};

}  // namespace

int thread_count() {
  return in_team || omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
}

void set_thread_count(int count) {
  require_usage(count >= 1 && count <= kMaxThreads, Cause{ErrorCode::out_of_range, "threads"},
                "threads must be 1 to ", kMaxThreads, ", got ", count);
  omp_set_num_threads(count);
}

int threads_for(int64_t work) {
  if (work < kMinSharedWork) return 1;
  return step_threads > 0 ? step_threads : omp_get_max_threads();
}

SmallStep::SmallStep(int64_t loop_work)
    : outer_step_threads_(step_threads), outer_threads_(omp_get_max_threads()) {
  if (step_threads == 0) step_threads = outer_threads_;
  omp_set_num_threads(threads_for(loop_work));
}

SmallStep::~SmallStep() {
  step_threads = outer_step_threads_;
  omp_set_num_threads(outer_threads_);
}

bool in_small_step() {
  return step_threads > 0;
}

KnownWork::KnownWork(int64_t work) : outer_threads_(omp_get_max_threads()) {
  omp_set_num_threads(threads_for(work));
}

KnownWork::~KnownWork() {
  omp_set_num_threads(outer_threads_);
}

void run_team(int threads, const std::function<void(int member, int members)>& body) {
  if (threads <= 1) {
    body(0, 1);
    return;
  }
  std::exception_ptr failure;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  const Member member(body, failure, failed);
  if (kThreadSanitizer) {
    // ThreadSanitizer does not know OpenMP's barriers; it understands these threads.
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { member.run(i, threads); });
    member.run(0, threads);
    for (std::thread& other : others) other.join();
  } else {
#pragma omp parallel num_threads(threads)
    member.run(omp_get_thread_num(), omp_get_num_threads());
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace linnet
