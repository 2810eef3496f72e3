// A loader that prepares the next batches in a background thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "data/batch.h"

namespace linnet {

// Calls make(first), make(first + 1), ... in a thread of its own, at most `depth` batches ahead,
// and hands the results out in that order: the order is what `make` says, never what threads do.
class PrefetchingLoader {
 public:
  using Maker = std::function<Batch(int64_t index)>;
  // `make` is called from another thread; `end` is the index after the last batch (none: endless).
  PrefetchingLoader(Maker make, int64_t first, std::optional<int64_t> end = {}, size_t depth = 4);
  // Waits for the batch being made, drops what was not taken.
  ~PrefetchingLoader();
  PrefetchingLoader(const PrefetchingLoader&) = delete;
  PrefetchingLoader& operator=(const PrefetchingLoader&) = delete;

  // The next batch, or nothing after the last. Rethrows what make() threw, when its turn comes and
  // at every call after that. For one consumer thread.
  std::optional<Batch> next();

 private:
  void run();

  const Maker make_;
  const std::optional<int64_t> end_;
  const size_t depth_;
  int64_t index_;  // of the batch to make next; only the thread touches it
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool finished_ = false;  // nothing more will be added to ready_
  bool stop_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace linnet
