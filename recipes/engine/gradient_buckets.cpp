#include "recipes/engine/gradient_buckets.h"

#include <algorithm>
#include <utility>

namespace linnet {

GradientBuckets::GradientBuckets(const ParameterSet& parameters, Communicator& ranks, int64_t bytes,
                                 DType reduce)
    : parameters_(parameters), ranks_(ranks), reduce_(reduce) {
  const Tensor& gradients = parameters.gradients();
  const int64_t length =
      std::max<int64_t>(1, bytes / static_cast<int64_t>(size_of(gradients.dtype())));
  for (int64_t end = gradients.elements(); end > 0; end -= length) {
    buckets_.push_back({std::max<int64_t>(0, end - length), end, 0, 0});
  }
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    for (Bucket& bucket : buckets_) {
      if (entry.begin < bucket.end && bucket.begin < entry.end) ++bucket.parameters;
    }
    Variable parameter = entry.variable;
    parameter.set_gradient_hook([this, begin = entry.begin, end = entry.end](const Variable&) {
      if (active_) complete(begin, end);
    });
  }
  thread_ = std::thread([this] { work(); });
}

GradientBuckets::~GradientBuckets() {
  for (const ParameterSet::Entry& entry : parameters_.entries()) {
    Variable parameter = entry.variable;
    parameter.set_gradient_hook(nullptr);
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GradientBuckets::begin() {
  for (Bucket& bucket : buckets_) bucket.left = bucket.parameters;
  active_ = true;
  const std::lock_guard lock(mutex_);
  started_ = summed_ = 0;
}

void GradientBuckets::complete(int64_t begin, int64_t end) {
  for (Bucket& bucket : buckets_) {
    if (begin < bucket.end && bucket.begin < end) --bucket.left;
  }
  const auto open = std::find_if(buckets_.begin(), buckets_.end(),
                                 [](const Bucket& bucket) { return bucket.left > 0; });
  start(static_cast<size_t>(open - buckets_.begin()));
}

void GradientBuckets::start(size_t complete) {
  const std::lock_guard lock(mutex_);
  if (complete <= started_) return;
  started_ = complete;
  changed_.notify_all();
}

void GradientBuckets::finish() {
  active_ = false;
  start(buckets_.size());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return summed_ == buckets_.size() || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void GradientBuckets::work() {
  try {
    while (true) {
      size_t next = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || summed_ < started_; });
        if (stop_) return;
        next = summed_;
      }
      sum(buckets_[next]);
      const std::lock_guard lock(mutex_);
      ++summed_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void GradientBuckets::sum(const Bucket& bucket) const {
  const Tensor gradients = parameters_.gradients().slice(bucket.begin, {bucket.end - bucket.begin});
  const Tensor sums = gradients.to(reduce_);
  ranks_.all_reduce_sum(sums);
  if (!sums.shares_storage(gradients)) gradients.copy_from(sums);
}

}  // namespace linnet
