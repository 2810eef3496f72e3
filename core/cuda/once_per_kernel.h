// What is done once for each kernel and device, however often the kernel is launched.
#pragma once

#include <mutex>
#include <set>
#include <utility>

namespace linnet::cuda {

class OncePerKernel {
 public:
  // Runs work() unless it ended without an exception for this kernel and device before.
  template <typename Work>
  void run(int device, const void* kernel, const Work& work) {
    const std::lock_guard lock(mutex_);
    if (done_.contains({device, kernel})) return;
    work();
    done_.insert({device, kernel});
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<int, const void*>> done_;
};

}  // namespace linnet::cuda
