#include "recipes/engine/bench/slow_network.h"

#include <thread>

namespace linnet {

void SlowNetwork::wait(const Tensor& values) const {
  if (values.bytes() >= 1024) std::this_thread::sleep_for(delay_);
}

void SlowNetwork::all_reduce_sum_checked(const Tensor& values) {
  wait(values);
  ranks_.all_reduce_sum(values);
}

void SlowNetwork::start_all_reduce_sum_checked(const Tensor& values) {
  wait(values);
  ranks_.start_all_reduce_sum(values);
}

void SlowNetwork::reduce_scatter_sum_checked(const Tensor& values) {
  wait(values);
  ranks_.reduce_scatter_sum(values);
}

}  // namespace linnet
