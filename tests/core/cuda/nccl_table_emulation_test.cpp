// What linnet asks of NCCL and of CUDA's streams, by stand-ins that write it down: rank 1 of two,
// the other of which has the same values. Where the headers of both are installed.
#include "core/comm/cuda/nccl.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>)

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "tests/cuda_helpers.h"
#include "tests/error_helpers.h"

// The library of this build has none.
#define make_nccl_communicator make_nccl_communicator_of_table
#include "core/comm/cuda/nccl_communicator.cpp"  // NOLINT(bugprone-suspicious-include)
#undef make_nccl_communicator

namespace linnet::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What the stand-ins were asked for, and what they answer.
struct Asked {
  std::vector<std::string> calls;
  cudaError_t stream = cudaSuccess;
  ncclResult_t error = ncclSuccess;
  size_t width = 1;  // bytes of an element of the last sum
};
Asked asked;

char side_stream, made_event, summed_event;

std::string name_of_stream(cudaStream_t stream) {
  return stream == nullptr ? "stream" : "side";
}

template <typename T>
void doubled(const void* from, void* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<T*>(to)[i] = static_cast<T>(2 * static_cast<const T*>(from)[i]);
  }
}

void add_other(const void* from, void* to, size_t count) {
  if (!capturing()) synchronize();  // this sums on the host, at once
  asked.width == 8 ? doubled<double>(from, to, count) : doubled<float>(from, to, count);
}

NcclLibrary table() {
  NcclLibrary library;
  library.error_string = [](ncclResult_t) { return "a cable is loose"; };
  library.init_rank = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
    EXPECT_EQ(config->blocking, 0);
    *comm = reinterpret_cast<ncclComm_t>(&asked);
    return ncclSuccess;
  };
  library.async_error = [](ncclComm_t, ncclResult_t* result) {
    *result = asked.error;
    return ncclSuccess;
  };
  library.destroy = [](ncclComm_t) { return ncclSuccess; };
  library.abort = [](ncclComm_t) {
    asked.calls.emplace_back("abort");
    return ncclSuccess;
  };
  library.reduce_scatter = [](const void* from, void* to, size_t count, ncclDataType_t type,
                              ncclRedOp_t, ncclComm_t, cudaStream_t stream) {
    asked.calls.push_back(concat("sums of ", count, " on ", name_of_stream(stream)));
    asked.width = type == ncclFloat64 ? 8 : 4;
    const char* own = static_cast<const char*>(from) + count * asked.width;
    EXPECT_EQ(own, to);  // in place
    add_other(own, to, count);
    return ncclSuccess;
  };
  library.all_gather = [](const void* from, void* to, size_t bytes, ncclDataType_t, ncclComm_t,
                          cudaStream_t stream) {
    asked.calls.push_back(concat("all of ", bytes, " bytes on ", name_of_stream(stream)));
    EXPECT_EQ(from, static_cast<char*>(to) + bytes);  // in place
    add_other(to, to, bytes / asked.width);
    return ncclSuccess;
  };
  return library;
}

// The ranks on the host, which have nothing to say.
class QuietRanks final : public Communicator {
 public:
  QuietRanks() : Communicator(1, 2, std::chrono::milliseconds(50)) {}
  std::string_view name() const override { return "quiet"; }

 private:
  void all_reduce_sum_checked(const Tensor&) override {}
  void reduce_scatter_sum_checked(const Tensor&) override { asked.calls.emplace_back("host"); }
  void all_gather_checked(const Tensor&) override {}
  void broadcast_checked(const Tensor&, int) override {}
  void send_checked(const Tensor&, int) override {}
  void receive_checked(const Tensor&, int) override {}
};

class NcclTable : public ::testing::Test {
 protected:
  void SetUp() override {
    asked = {};
    ranks_ = make_nccl_communicator_of_table(std::make_unique<QuietRanks>(), test::kGpu);
  }
  static Tensor threes(int64_t count, DType dtype = DType::f32) {
    return Tensor::full({count}, 3, dtype, test::kGpu);
  }

  std::unique_ptr<Communicator> ranks_;
};

TEST_F(NcclTable, StartedSumsRunBesideTheStream) {
  const Tensor first = threes(6), second = threes(4, DType::f64);
  ranks_->start_all_reduce_sum(first);
  ranks_->start_all_reduce_sum(second);
  EXPECT_THAT(asked.calls,
              ElementsAre("stream records made", "side waits for made", "sums of 3 on side",
                          "all of 12 bytes on side", "stream records made", "side waits for made",
                          "sums of 2 on side", "all of 16 bytes on side"));
  asked.calls.clear();
  ranks_->finish_sums();
  EXPECT_THAT(asked.calls,
              ElementsAre("side records summed", "stream waits for summed", "stream ended?"));
  EXPECT_EQ(first.to_vector<float>(), std::vector<float>(6, 6));
  EXPECT_EQ(second.to_vector<float>(), std::vector<float>(4, 6));
  EXPECT_EQ(ranks_->bytes_sent(), 6 * 4 + 4 * 8);
  asked.calls.clear();
  ranks_->finish_sums();
  EXPECT_THAT(asked.calls, ElementsAre("stream ended?"));
}

TEST_F(NcclTable, WhatDoesNotDivideIsSummedOnTheStreamAfterTheOthers) {
  const Tensor even = threes(2), odd = threes(5);
  ranks_->start_all_reduce_sum(even);
  asked.calls.clear();
  ranks_->start_all_reduce_sum(odd);
  EXPECT_THAT(asked.calls,
              ElementsAre("side records summed", "stream waits for summed", "sums of 3 on stream",
                          "stream ended?", "all of 12 bytes on stream", "stream ended?"));
  ranks_->finish_sums();
  EXPECT_EQ(odd.to_vector<float>(), std::vector<float>(5, 6));
  const Tensor on_host = Tensor::full({2}, 1);
  asked.calls.clear();
  ranks_->start_all_reduce_sum(on_host);
  EXPECT_THAT(asked.calls, ElementsAre("host"));
}

TEST_F(NcclTable, ACaptureWaitsForNothingAndItsReplaysAreCounted) {
  const Tensor values = threes(6);
  const Graph graph(make_graph_memory(0), [&] {
    ranks_->start_all_reduce_sum(values);
    ranks_->finish_sums();
  });
  EXPECT_THAT(asked.calls, ElementsAre("stream records made", "side waits for made",
                                       "sums of 3 on side", "all of 12 bytes on side",
                                       "side records summed", "stream waits for summed"));
  EXPECT_EQ(ranks_->bytes_sent(), 0);
  graph.replay();
  graph.replay();
  EXPECT_EQ(ranks_->bytes_sent(), 2 * 6 * 4);
}

TEST_F(NcclTable, ReplaysEndWithinTheTimeLimit) {
  asked.stream = cudaErrorNotReady;
  const std::string text = test::message_of<Error>([&] { ranks_->finish_sums(); });
  EXPECT_THAT(text,
              HasSubstr("rank 1 of 2, all_reduce_sum on cuda:0: no end within the time limit"));
  EXPECT_EQ(asked.calls.back(), "abort");
  asked = {};
  EXPECT_EQ(test::message_of<Error>([&] { ranks_->start_all_reduce_sum(threes(2)); }), text);
  EXPECT_EQ(test::message_of<Error>([&] { ranks_->finish_sums(); }), text);
}

TEST_F(NcclTable, WhatNcclFindsOutLaterIsTold) {
  asked.stream = cudaErrorNotReady;
  asked.error = ncclSystemError;
  EXPECT_THAT(test::message_of<Error>([&] { ranks_->all_reduce_sum(threes(2)); }),
              HasSubstr("reduce_scatter_sum on cuda:0: a cable is loose"));
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = table();
  return library;
}

}  // namespace linnet::cuda

// CUDA's functions.
using linnet::cuda::asked;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = reinterpret_cast<cudaStream_t>(&linnet::cuda::side_stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  static bool summed = false;  // the second of two
  char& which = summed ? linnet::cuda::summed_event : linnet::cuda::made_event;
  summed = !summed;
  *event = reinterpret_cast<cudaEvent_t>(&which);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const bool made = event == reinterpret_cast<cudaEvent_t>(&linnet::cuda::made_event);
  asked.calls.push_back(
      linnet::concat(linnet::cuda::name_of_stream(stream), " records ", made ? "made" : "summed"));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const bool made = event == reinterpret_cast<cudaEvent_t>(&linnet::cuda::made_event);
  asked.calls.push_back(linnet::concat(linnet::cuda::name_of_stream(stream), " waits for ",
                                       made ? "made" : "summed"));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  asked.calls.push_back(linnet::cuda::name_of_stream(stream) + " ended?");
  return asked.stream;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "a fault";
}

#endif
