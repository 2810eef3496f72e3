// Sums over processes where the emulated device does its work, in and out of graphs: what NCCL is
// for GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/cuda/emulation/submit.h"
#include "core/cuda/runtime.h"
#include "tests/recipes/cuda/device_run.h"
#include "tests/recipes/data_parallel.h"

namespace linnet {
namespace {

using test::is_rank;
using test::kGpu;
using test::pass_on_ranks;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Sums of device tensors are work of the device's stream, which calls the host's communicator.
class SumsOnStream final : public Communicator {
 public:
  explicit SumsOnStream(Communicator& host)
      : Communicator(host.rank(), host.size(), host.time_limit()), host_(host) {}
  std::string_view name() const override { return "stream"; }
  bool reaches(Device device) const override { return device == Device() || device == kGpu; }
  void finish_sums() override {
    if (!cuda::capturing()) cuda::synchronize();
  }
  int64_t sums() const { return sums_; }

 private:
  void all_reduce_sum_checked(const Tensor& values) override {
    if (values.device() == Device()) return host_.all_reduce_sum(values);
    start_all_reduce_sum_checked(values);
    finish_sums();
  }
  void start_all_reduce_sum_checked(const Tensor& values) override {
    emulation::submit(
        [this, memory = values.raw(), shape = values.shape(), dtype = values.dtype()] {
          const Tensor sums = Tensor::empty(shape, dtype);
          std::memcpy(sums.raw(), memory, sums.bytes());
          host_.all_reduce_sum(sums);
          std::memcpy(memory, sums.raw(), sums.bytes());
          ++sums_;
        });
  }
  void reduce_scatter_sum_checked(const Tensor& values) override {
    host_.reduce_scatter_sum(values);
  }
  void all_gather_checked(const Tensor& values) override { host_.all_gather(values); }
  void broadcast_checked(const Tensor& values, int root) override { host_.broadcast(values, root); }
  void send_checked(const Tensor& values, int to) override { host_.send(values, to); }
  void receive_checked(const Tensor& values, int from) override { host_.receive(values, from); }

  Communicator& host_;
  int64_t sums_ = 0;
};

class CudaSumsOnStream : public test::DataParallel {
 protected:
  static std::string log_left(const std::string& name) {
    return read_file(join_path(shared(name), "log.txt"));
  }
};

// Through the host, on the stream, captured or not, and as late as a GPU may run its work: the same
// bits. Micro-batches of two forms; the last one has graphs of its own.
TEST_F(CudaSumsOnStream, LeaveTheSameBitsInAndOutOfGraphs) {
  const std::vector<std::string> all = {
      "model.dropout=0.1",   "train.tokens_per_update=160", "train.micro_batch=2",
      "train.max_steps=5",   "train.bucket_mib=0.001",      "optim.ema={decay: 0.9, warmup: true}",
      "optim.clip_norm=0.1", "evaluate.every_steps=0"};
  const auto with = [&](std::vector<std::string> changes) {
    changes.insert(changes.begin(), all.begin(), all.end());
    return decoder(changes);
  };
  pass_on_ranks(2, [&](Communicator& ranks) {
    if (ranks.rank() == 0) set_log_level(LogLevel::info);
    SumsOnStream stream(ranks);
    const auto train_both = [&](const std::string& name, const std::string& change) {
      train_on(ranks, with({change}), name + "host", "auto", kGpu);
      train_on(stream, with({change}), name + "stream", "auto", kGpu);
    };
    train_both("", "train.cuda_graph=true");
    const int64_t captured = stream.sums();
    EXPECT_GT(captured, 5);
    train_on(stream, with({"train.cuda_graph=false"}), "eager", "auto", kGpu);
    EXPECT_EQ(stream.sums(), 2 * captured);
    train_both("rounded-", "train.reduce=bf16");
    setenv("LINNET_EMULATION_LATE", "1", 1);
    train_on(stream, with({}), "late", "auto", kGpu);
    unsetenv("LINNET_EMULATION_LATE");
  });
  if (is_rank()) return;
  for (const char* name : {"stream", "eager", "late"}) {
    expect_equal(left("host"), left(name), name);
  }
  expect_equal(left("rounded-host"), left("rounded-stream"), "rounded");
  const std::string sums = "pass of 1 x 16 tokens with its sums over processes ";
  EXPECT_THAT(log_left("stream"), HasSubstr(sums + "is a CUDA graph of "));
  EXPECT_THAT(log_left("stream"), ContainsRegex(test::kReplayed));
  EXPECT_THAT(log_left("stream"), Not(HasSubstr("without")));
  EXPECT_THAT(log_left("host"), HasSubstr(sums + "runs without a CUDA graph: a sum over processes "
                                                 "that goes through the host"));
  EXPECT_THAT(log_left("host"), ContainsRegex(test::kReplayed));
}

}  // namespace
}  // namespace linnet
