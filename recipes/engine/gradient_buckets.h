// The gradients of an update, summed over processes while they are still being computed.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"
#include "layers/parameters.h"

namespace linnet {

// Ranges of the flat gradient buffer, from its end, where backward passes begin. The hooks of the
// parameters count a bucket down, and each one that is complete is summed, always in the same
// order: all ranks have to call the communicator alike. On the CPU a thread of its own does it. On
// a GPU that the communicator reaches, the GPU does it beside the pass, also in a captured graph;
// on another one the bucket is copied to the host, where the thread sums it. Refers to its
// arguments, whose parameters it gives their hooks.
class GradientBuckets {
 public:
  // Buckets of at most so many bytes of gradients, at least one element of each rank's share. Sums
  // are made in `reduce`: that of the gradients, or bf16, which halves what is sent and rounds each
  // rank's gradients and the sum.
  GradientBuckets(const ParameterSet& parameters, Communicator& ranks, int64_t bytes, DType reduce);
  // Ends what was begun, which takes the communicator's time limit where other ranks do not.
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Before the last backward pass of an update: until finish() the communicator is in use. Throws
  // cuda::NotCapturable in a capture of sums that go through the host.
  void begin();
  // After it: sums what no pass reached, too, and waits for all sums. Throws what the communicator
  // does.
  void finish();

  size_t count() const { return buckets_.size(); }

 private:
  struct Bucket {
    int64_t begin, end;  // elements
    int64_t parameters;  // that lie in it, or a part of them
    int64_t left;        // of those in this pass
    Tensor sums = {};    // while it is summed
  };
  enum class Where { host, gpu, copied };

  void complete(int64_t begin, int64_t end);
  void start(size_t complete);
  void work();
  Tensor gradients_of(const Bucket& bucket) const;
  // The sums become the gradients.
  void take(Bucket& bucket) const;

  const ParameterSet& parameters_;
  Communicator& ranks_;
  DType reduce_;
  Where where_ = Where::host;
  std::vector<Bucket> buckets_;
  bool active_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t started_ = 0, summed_ = 0;  // buckets that may be summed, and are
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // unless the GPU sums; last: it uses everything above
};

}  // namespace linnet
