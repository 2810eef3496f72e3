// The prefetching loader: one producer, one consumer, a bounded queue.
#include "data/loader.h"

#include "core/error.h"

namespace linnet {

PrefetchingLoader::PrefetchingLoader(Maker make, int64_t first, std::optional<int64_t> end,
                                     size_t depth)
    : make_(std::move(make)), end_(end), depth_(depth), index_(first) {
  require(depth_ > 0, "PrefetchingLoader: depth must be at least 1");
  thread_ = std::thread([this] { run(); });
}

PrefetchingLoader::~PrefetchingLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PrefetchingLoader::run() {
  try {
    while (!end_ || index_ < *end_) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || ready_.size() < depth_; });
        if (stop_) return;
      }
      Batch batch = make_(index_++);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
}

std::optional<Batch> PrefetchingLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_ || !ready_.empty(); });
  if (ready_.empty()) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return std::nullopt;
  }
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

}  // namespace linnet
