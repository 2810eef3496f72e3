// Sums of a device's gradients: on the device, beside the pass, or through host memory.
#include "recipes/engine/gradient_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>

#include "autograd/arithmetic.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "core/elementwise.h"
#include "tests/cuda_helpers.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using test::kGpu;

constexpr int64_t kLength = 16;
constexpr int kCount = 4;

// Of two ranks, the other of which has the same gradients.
class Doubling final : public Communicator {
 public:
  explicit Doubling(bool reaches_device)
      : Communicator(0, 2, kDefaultTimeLimit), reaches_device_(reaches_device) {}
  std::string_view name() const override { return "doubling"; }
  bool reaches(Device device) const override { return device == Device() || reaches_device_; }
  void finish_sums() override { note("finish"); }
  // By the pass and by the thread that sums.
  void note(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events.push_back(event);
  }

  std::vector<std::string> events;

 private:
  void all_reduce_sum_checked(const Tensor& values) override {
    EXPECT_EQ(values.device(), Device());
    sum(values, "sum");
  }
  void start_all_reduce_sum_checked(const Tensor& values) override {
    EXPECT_EQ(values.device(), kGpu);
    sum(values, "start");
  }
  void sum(const Tensor& values, const char* event) {
    note(concat(event, ' ', values.elements(), ' ', name_of(values.dtype())));
    add_into(values, values.clone());
  }
  void reduce_scatter_sum_checked(const Tensor&) override {}
  void all_gather_checked(const Tensor&) override {}
  void broadcast_checked(const Tensor&, int) override {}
  void send_checked(const Tensor&, int) override {}
  void receive_checked(const Tensor&, int) override {}

  bool reaches_device_;
  std::mutex mutex_;
};

// A chain of parameters on the device.
class CudaBuckets : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kCount; ++i) {
      chain_.push_back(parameters_.declare(concat("p", i), {kLength}, init_constant(1)));
    }
    parameters_.materialize(1, DType::f32, DType::f32, kGpu);
  }
  // Each step of the backward pass is an event of `ranks`.
  void pass(Doubling& ranks) const {
    parameters_.gradients().set_zero();
    Variable x(Tensor::zeros({kLength}, DType::f32, kGpu));
    for (const Variable& parameter : chain_) {
      x = record("step", x.value().clone(), {x, parameter}, [&ranks](Gradients& gradients) {
        ranks.note("step");
        if (gradients.wanted(0)) gradients.add(0, gradients.output());
        gradients.add(1, gradients.output());
      });
    }
    backward(sum_all(x));
  }
  void expect_gradients(float value) const {
    EXPECT_EQ(parameters_.gradients().to_vector<float>(),
              std::vector<float>(kCount * kLength, value));
  }

  ParameterSet parameters_;
  std::vector<Variable> chain_;
};

TEST_F(CudaBuckets, StartOnTheDeviceWhileThePassGoesOn) {
  Doubling ranks(true);
  GradientBuckets buckets(parameters_, ranks, 2 * kLength * 4, DType::f32);
  pass(ranks);  // not the last micro-batch
  ranks.events.clear();
  buckets.begin();
  pass(ranks);
  buckets.finish();
  const std::vector<std::string> expected = {"step", "step",         "start 32 f32", "step",
                                             "step", "start 32 f32", "finish"};
  EXPECT_EQ(ranks.events, expected);
  expect_gradients(2);
}

TEST_F(CudaBuckets, RoundOnTheDevice) {
  Doubling ranks(true);
  GradientBuckets buckets(parameters_, ranks, 1 << 20, DType::bf16);
  buckets.begin();
  parameters_.gradients().fill(1.001);  // 1 in bf16
  buckets.finish();
  const std::vector<std::string> expected = {"start 64 bf16", "finish"};
  EXPECT_EQ(ranks.events, expected);
  expect_gradients(2);
}

TEST_F(CudaBuckets, AreCapturedWithThePass) {
  Doubling ranks(true);
  GradientBuckets buckets(parameters_, ranks, 3 * kLength * 4, DType::f32);
  const auto all = [&] {
    buckets.begin();
    pass(ranks);
    buckets.finish();
  };
  all();
  parameters_.gradients().fill(-1);
  const cuda::Graph graph(cuda::make_graph_memory(0), all);
  expect_gradients(-1);
  for (int replay = 0; replay < 2; ++replay) {
    graph.replay();
    expect_gradients(2);
  }
}

TEST_F(CudaBuckets, GoThroughTheHostWhereTheDeviceIsNotReached) {
  for (const DType reduce : {DType::f32, DType::bf16}) {
    Doubling ranks(false);
    GradientBuckets buckets(parameters_, ranks, 2 * kLength * 4, reduce);
    buckets.begin();
    pass(ranks);
    buckets.finish();
    expect_gradients(2);
    const std::string sum = concat("sum 32 ", name_of(reduce));
    EXPECT_EQ(std::count(ranks.events.begin(), ranks.events.end(), sum), 2);
  }
}

TEST_F(CudaBuckets, CannotBeCapturedThroughTheHost) {
  Doubling ranks(false);
  GradientBuckets buckets(parameters_, ranks, 1 << 20, DType::f32);
  EXPECT_EQ(test::message_of<cuda::NotCapturable>([&] {
              const cuda::Graph graph(cuda::make_graph_memory(0), [&] { buckets.begin(); });
            }),
            "a sum over processes that goes through the host (NCCL's does not) cannot be captured "
            "in a CUDA graph");
  buckets.begin();  // and goes on without a graph
  pass(ranks);
  buckets.finish();
  expect_gradients(2);
}

}  // namespace
}  // namespace linnet
