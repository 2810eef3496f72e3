// A communicator that takes longer than its network does.
#pragma once

#include <chrono>

#include "core/comm/communicator.h"

namespace linnet {

// Passes every operation on to `ranks`, which it refers to, and sleeps for `delay` in each that
// sums gradients: values of at least 1 KiB. Replays of captured sums do not sleep.
class SlowNetwork final : public Communicator {
 public:
  SlowNetwork(Communicator& ranks, std::chrono::milliseconds delay)
      : Communicator(ranks.rank(), ranks.size(), ranks.time_limit()),
        ranks_(ranks),
        delay_(delay) {}
  std::string_view name() const override { return ranks_.name(); }
  bool reaches(Device device) const override { return ranks_.reaches(device); }
  void finish_sums() override { ranks_.finish_sums(); }

 private:
  void all_reduce_sum_checked(const Tensor& values) override;
  void start_all_reduce_sum_checked(const Tensor& values) override;
  void reduce_scatter_sum_checked(const Tensor& values) override;
  void all_gather_checked(const Tensor& values) override { ranks_.all_gather(values); }
  void broadcast_checked(const Tensor& values, int root) override {
    ranks_.broadcast(values, root);
  }
  void send_checked(const Tensor& values, int to) override { ranks_.send(values, to); }
  void receive_checked(const Tensor& values, int from) override { ranks_.receive(values, from); }
  void wait(const Tensor& values) const;

  Communicator& ranks_;
  std::chrono::milliseconds delay_;
};

}  // namespace linnet
