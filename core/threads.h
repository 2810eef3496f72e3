// Threads of the CPU backend: OpenMP behind a few functions, so that nothing else needs it. An
// exception of a thread is rethrown to the caller; leaving an OpenMP region it would end the
// program.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace linnet {

// Threads that parallel work uses; 1 inside of it. Results are bitwise the same for a fixed count.
int thread_count();
// Throws UsageError unless count is 1 to 1024.
void set_thread_count(int count);

// Work (multiply-adds of a product, elements of a decode state) from which on more threads than one
// save more time than waking them takes: tools/bench/results/cpu.md has the measured sizes.
inline constexpr int64_t kMinSharedWork = int64_t{1} << 22;

// Threads that so much work is worth: 1, or from kMinSharedWork on all that it may take here.
int threads_for(int64_t work);

// A step of few tokens, as generation makes them. While it lives, parallel loops of the thread that
// made it take one thread, or all of them where `loop_work` is at least kMinSharedWork.
class SmallStep {
 public:
  explicit SmallStep(int64_t loop_work);
  ~SmallStep();
  SmallStep(const SmallStep&) = delete;
  SmallStep& operator=(const SmallStep&) = delete;

 private:
  int outer_step_threads_, outer_threads_;
};

// Whether a SmallStep of this thread lives.
bool in_small_step();

// Work whose size is known, as that of a product: while it lives, parallel loops of the thread that
// made it take threads_for(work).
class KnownWork {
 public:
  explicit KnownWork(int64_t work);
  ~KnownWork();
  KnownWork(const KnownWork&) = delete;
  KnownWork& operator=(const KnownWork&) = delete;

 private:
  int outer_threads_;
};

// Calls body(member, members) once in each of `members` threads, at most `threads` of them.
// Rethrows the exception of a member (one of them, when several throw) after all have ended.
void run_team(int threads, const std::function<void(int member, int members)>& body);

// Calls body(begin, end) on disjoint, contiguous parts of [0, count): one part per thread, none
// smaller than `grain` elements unless it is the last. The split depends only on count, grain and
// the number of threads. Nested calls run serially. Rethrows an exception of a part.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t parts =
      std::max<int64_t>(1, std::min<int64_t>(thread_count(), count / std::max<int64_t>(1, grain)));
  if (parts == 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t step = (count + parts - 1) / parts;
  run_team(static_cast<int>(parts), [&](int member, int members) {
    for (int64_t part = member; part < parts; part += members) {
      const int64_t begin = part * step;
      const int64_t end = std::min(count, begin + step);
      if (begin < end) body(begin, end);
    }
  });
}

// For tasks of uneven size: tasks [0, count) go, `chunk` neighbours at a time, to the thread that
// is free first. make_body() is called once in each thread and returns the function that is called
// with each of its tasks; objects that the function holds are the thread's own. Rethrows an
// exception of a task.
template <typename MakeBody>
void parallel_tasks(int64_t count, int64_t chunk, const MakeBody& make_body) {
  if (count <= 0) return;
  const int64_t chunks = (count + chunk - 1) / chunk;
  std::atomic<int64_t> next{0};
  const auto work = [&](int, int) {
    auto body = make_body();
    for (int64_t taken = next++; taken < chunks; taken = next++) {
      const int64_t begin = taken * chunk;
      const int64_t end = std::min(count, begin + chunk);
      for (int64_t task = begin; task < end; ++task) body(task);
    }
  };
  run_team(static_cast<int>(std::min<int64_t>(thread_count(), chunks)), work);
}

}  // namespace linnet
