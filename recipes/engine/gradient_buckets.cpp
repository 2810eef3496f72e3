#include "recipes/engine/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"

namespace linnet {

GradientBuckets::GradientBuckets(const ParameterSet& parameters, Communicator& ranks, int64_t bytes,
                                 DType reduce)
    : parameters_(parameters), ranks_(ranks), reduce_(reduce) {
  const Tensor& gradients = parameters.gradients();
  if (gradients.device() != Device()) {
    where_ = ranks.reaches(gradients.device()) ? Where::gpu : Where::copied;
  }
  // Equal shares for all ranks, which need no copy.
  const int64_t size = ranks.size();
  const int64_t length =
      std::max<int64_t>(1, bytes / static_cast<int64_t>(size_of(gradients.dtype())) / size) * size;
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
  if (where_ != Where::gpu) thread_ = std::thread([this] { work(); });
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
  if (thread_.joinable()) thread_.join();
}

void GradientBuckets::begin() {
  if constexpr (kCuda) {
    if (where_ == Where::copied) {
      cuda::refuse_capture("a sum over processes that goes through the host (NCCL's does not)");
    }
  }
  for (Bucket& bucket : buckets_) {
    bucket.left = bucket.parameters;
    bucket.sums = Tensor();  // of a pass that was given up
  }
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
  // This thread alone changes started_.
  for (size_t i = started_; i < complete && where_ != Where::host; ++i) {
    const Tensor gradients = gradients_of(buckets_[i]).to(reduce_);
    buckets_[i].sums = where_ == Where::gpu ? gradients : gradients.to(Device{});
    if (where_ == Where::gpu) ranks_.start_all_reduce_sum(buckets_[i].sums);
  }
  const std::lock_guard lock(mutex_);
  if (complete <= started_) return;
  started_ = complete;
  changed_.notify_all();
}

void GradientBuckets::finish() {
  active_ = false;
  start(buckets_.size());
  if (where_ == Where::gpu) {
    ranks_.finish_sums();
  } else {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return summed_ == buckets_.size() || failure_ != nullptr; });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }
  if (where_ == Where::host) return;
  for (Bucket& bucket : buckets_) take(bucket);
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
      Bucket& bucket = buckets_[next];
      if (where_ == Where::host) bucket.sums = gradients_of(bucket).to(reduce_);
      ranks_.all_reduce_sum(bucket.sums);
      if (where_ == Where::host) take(bucket);
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

Tensor GradientBuckets::gradients_of(const Bucket& bucket) const {
  return parameters_.gradients().slice(bucket.begin, {bucket.end - bucket.begin});
}

void GradientBuckets::take(Bucket& bucket) const {
  const Tensor sums = std::exchange(bucket.sums, Tensor());
  const Tensor gradients = gradients_of(bucket);
  if (!sums.shares_storage(gradients)) gradients.copy_from(sums);
}

}  // namespace linnet
