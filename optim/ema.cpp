// Exponential moving average of the weights.
#include "optim/ema.h"

#include <algorithm>
#include <utility>

#include "core/cuda/backend.h"
#include "core/threads.h"
#include "optim/cuda/update.h"

namespace linnet {
namespace {

// Elements below which a second thread does not pay.
constexpr int64_t kGrain = 8192;

// Calls body(average, weights) with typed elements after checking that the two agree.
template <typename Body>
void on_pair(const Tensor& average, const Tensor& weights, const Body& body) {
  require(weights.shape() == average.shape() && weights.dtype() == average.dtype(),
          "WeightAverage: expected weights of shape ", average.shape(), " and dtype ",
          name_of(average.dtype()), ", got ", weights.shape(), " and ", name_of(weights.dtype()));
  if (average.dtype() == DType::f64) {
    body(average.data<double>(), weights.data<double>());
  } else {
    body(average.data<float>(), weights.data<float>());
  }
}

}  // namespace

WeightAverage::WeightAverage(const Tensor& weights, double decay, bool warmup)
    : average_(weights.clone()),
      updates_(Tensor::zeros({1}, DType::i64, weights.device())),
      decay_(decay),
      warmup_(warmup) {
  require(decay >= 0 && decay < 1, "WeightAverage: decay must be in [0, 1), got ", decay);
}

void WeightAverage::update(const Tensor& weights) {
  const double t = static_cast<double>(*updates_.data<int64_t>() + 1);
  const double decay = warmup_ ? std::min(decay_, t / (t + 9)) : decay_;
  const int64_t count = average_.elements();
  on_pair(average_, weights, [&](auto* average, const auto* weight) {
    using T = std::remove_pointer_t<decltype(average)>;
    const T take = static_cast<T>(1 - decay);
    parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) average[i] += take * (weight[i] - average[i]);
    });
  });
  ++*updates_.data<int64_t>();
}

void WeightAverage::update_on_device(const Tensor& weights, const Tensor& scalars) {
  require(weights.shape() == average_.shape() && on_cuda(weights),
          "WeightAverage::update_on_device: weights of shape ", weights.shape(), " on ",
          name_of(weights.device()));
  if constexpr (kCuda) {
    cuda::average(average_, weights, scalars, updates_, decay_, warmup_);
    cuda::finish_update(scalars, updates_, {});
  }
}

void WeightAverage::swap(const Tensor& weights) {
  if constexpr (kCuda) {
    if (on_cuda(weights)) return cuda::swap(weights, average_);
  }
  on_pair(average_, weights, [&](auto* average, auto* weight) {
    std::swap_ranges(average, average + average_.elements(), weight);
  });
}

StateTensors WeightAverage::state() const {
  return {{"average", average_}, {"updates", updates_}};
}

void WeightAverage::load_state(const StateTensors& source) {
  restore_state("weight average", state(), source);
}

}  // namespace linnet
