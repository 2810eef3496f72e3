// NCCL with one rank, and why there is none in builds without it. Several ranks need as many GPUs:
// linnet launch --procs 2 -- bench allreduce --device cuda, and CudaDataParallel.TrainsByNccl.
#include "core/comm/cuda/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/backend.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/elementwise.h"
#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

namespace linnet::cuda {
namespace {

TEST(Nccl, IsRefusedWhereThereIsNone) {
  const std::string problem = nccl_problem();
  if (problem.empty()) GTEST_SKIP() << "NCCL " << nccl_version() << " is here";
  EXPECT_EQ(nccl_version(), "");
  EXPECT_EQ(test::message_of<UsageError>([] {
              make_nccl_communicator(make_single_communicator(), {DeviceKind::cuda, 0});
            }),
            problem);
  if (kCudaBackend != CudaBackend::on) {
    EXPECT_THAT(problem, testing::HasSubstr("an emulated GPU has no NCCL"));
  }
}

TEST(Nccl, OneRankKeepsItsValues) {
  if (!nccl_problem().empty()) GTEST_SKIP() << nccl_problem();
  std::string why;
  if (devices(&why).empty()) GTEST_SKIP() << why;
  const Device device{DeviceKind::cuda, 0};
  const auto ranks = make_nccl_communicator(make_single_communicator(), device);
  EXPECT_EQ(ranks->name(), "nccl");
  EXPECT_EQ(ranks->sum(2.5), 2.5);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64}) {
    for (const int64_t count : {0, 1, 7, 100'000}) {
      const Tensor values = Tensor::full({count}, 3, dtype, device);
      ranks->all_reduce_sum(values);
      ranks->reduce_scatter_sum(values);
      ranks->all_gather(values);
      ranks->broadcast(values, 0);
      EXPECT_EQ(values.to_vector<float>(), std::vector<float>(static_cast<size_t>(count), 3));
    }
  }
  EXPECT_EQ(ranks->bytes_sent(), 0);
}

// Beside the stream, which writes the values before and reads them afterwards.
TEST(Nccl, SumsThatAreStartedEndBeforeWhatFollows) {
  if (!nccl_problem().empty()) GTEST_SKIP() << nccl_problem();
  std::string why;
  if (devices(&why).empty()) GTEST_SKIP() << why;
  const Device device{DeviceKind::cuda, 0};
  const auto ranks = make_nccl_communicator(make_single_communicator(), device);
  const Tensor values = Tensor::zeros({1 << 20}, DType::f32, device);
  const auto work = [&] {
    values.fill(3);
    for (int64_t half = 0; half < 2; ++half) {
      ranks->start_all_reduce_sum(values.slice(half << 19, {1 << 19}));
    }
    ranks->finish_sums();
    add_into(values, values.clone());
  };
  work();
  EXPECT_EQ(values.to_vector<float>(), std::vector<float>(1 << 20, 6));
  const Graph graph(make_graph_memory(0), work);
  values.fill(-1);
  graph.replay();
  ranks->finish_sums();
  EXPECT_EQ(values.to_vector<float>(), std::vector<float>(1 << 20, 6));
}

TEST(Nccl, SumsAreCapturedInAGraph) {
  if (!nccl_problem().empty()) GTEST_SKIP() << nccl_problem();
  std::string why;
  if (devices(&why).empty()) GTEST_SKIP() << why;
  const Device device{DeviceKind::cuda, 0};
  const auto ranks = make_nccl_communicator(make_single_communicator(), device);
  const Tensor values = Tensor::full({1000}, 3, DType::f32, device);
  ranks->all_reduce_sum(values);
  const Graph graph(make_graph_memory(0), [&] { ranks->all_reduce_sum(values); });
  graph.replay();
  graph.replay();
  EXPECT_EQ(values.to_vector<float>(), std::vector<float>(1000, 3));
}

}  // namespace
}  // namespace linnet::cuda
