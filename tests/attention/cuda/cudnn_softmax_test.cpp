// Softmax attention that trains by cuDNN (on an emulated device by its graphs, one operation at a
// time): as the plain kernels compute it, the same bits in every run, and in one sentence refused
// where cuDNN does not cover the call.
#include "attention/primitives/cudnn_softmax/cuda/cudnn_softmax.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/block_attention_problem.h"

namespace linnet {
namespace {

using namespace test::block_attention_problem;
using test::kGpu;

class CudaCudnnSoftmax : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::cudnn_problem().empty()) GTEST_SKIP() << cuda::cudnn_problem();
  }
};

Problem softmax(int64_t T, int64_t K) {
  Problem p({.B = 2, .Tq = T, .Tk = T, .H = 2, .G = 2, .K = K, .V = K});
  p.context.options.causal = true;
  return p;
}

std::vector<Tensor> by(KernelChoice choice, const Problem& p) {
  const UseKernels use(choice, kGpu);
  return results(p, DType::bf16, DType::bf16, kGpu);
}

TEST_F(CudaCudnnSoftmax, ComputesAsTheCpuAndRepeats) {
  for (const int64_t T : {16, 33}) {
    for (const bool causal : {false, true}) {
      Problem p = softmax(T, T == 16 ? 8 : 64);
      p.context.options.causal = causal;
      p.context.options.scale = 0.3;
      const std::vector<Tensor> expected = results(p, DType::bf16, DType::f64, Device{});
      const std::vector<Tensor> got = by(KernelChoice::cudnn, p);
      test::expect_close_in_bf16(got, expected, plain_results(p), concat(T, " tokens"));
      const std::vector<Tensor> again = by(KernelChoice::cudnn, p);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(test::same_bits(got[i], again[i])) << i;
    }
  }
}

// Of so many blocks of keys the order in which they come shows, if anything of it is left.
TEST_F(CudaCudnnSoftmax, RepeatsWhereManyBlocksAreAdded) {
  if (kCudaBackend != CudaBackend::on) GTEST_SKIP() << "needs a GPU: elsewhere one thread adds";
  const Problem p = softmax(4096, 64);
  const std::vector<Tensor> first = by(KernelChoice::cudnn, p);
  for (int run = 0; run < 10; ++run) {
    const std::vector<Tensor> again = by(KernelChoice::cudnn, p);
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_TRUE(test::same_bits(first[i], again[i])) << i << ", run " << run;
    }
  }
}

// Others round elsewhere: y is that of `auto` wherever cuDNN was not asked, and where nothing is to
// be trained.
TEST_F(CudaCudnnSoftmax, IsTakenForTrainingAlone) {
  const Problem p = softmax(64, 32);
  EXPECT_FALSE(test::same_bits(by(KernelChoice::cudnn, p)[0], by(KernelChoice::automatic, p)[0]));
  const auto without_gradients = [&](KernelChoice choice) {
    const NoGrad off;
    const UseKernels use(choice, kGpu);
    const auto on_gpu = [](const Tensor& x) { return Variable(x.to(DType::bf16).to(kGpu)); };
    return block_attention({on_gpu(p.q), on_gpu(p.k), on_gpu(p.v), {}, {}, {}}, p.context)
        .value()
        .to(Device{});
  };
  EXPECT_TRUE(test::same_bits(without_gradients(KernelChoice::cudnn),
                              without_gradients(KernelChoice::automatic)));
}

TEST_F(CudaCudnnSoftmax, IsRefusedWhereItDoesNotCoverTheCall) {
  const auto refusal = [](const Problem& p) {
    const std::string said = test::message_of<UsageError>([&] { by(KernelChoice::cudnn, p); });
    const std::string begin =
        "block attention: backend cudnn was requested, but cuDNN's kernels do not cover ";
    const std::string end = "; use backend auto";
    EXPECT_EQ(said.substr(0, begin.size()), begin);
    EXPECT_GT(said.size(), begin.size() + end.size());
    if (said.size() <= begin.size() + end.size()) return said;
    EXPECT_EQ(said.substr(said.size() - end.size()), end);
    return said.substr(begin.size(), said.size() - begin.size() - end.size());
  };
  Problem p = softmax(40, 16);
  p.context.options.weights = BlockWeights::relu_squared;
  EXPECT_EQ(refusal(p), "weights other than a softmax");
  p = softmax(40, 16);
  p.band(true, 8);
  EXPECT_EQ(refusal(p), "patterns of keys");
  p = softmax(40, 16);
  p.add_bias(2, 39, 0);
  EXPECT_EQ(refusal(p), "a bias of the logits");
  p = softmax(40, 16);
  p.drop(0.1);
  EXPECT_EQ(refusal(p), "dropout of weights");
  p = softmax(40, 16);
  p.cut(0);
  EXPECT_EQ(refusal(p), "rows of several documents (data.cross_documents)");
  p = softmax(40, 16);
  p.mask();
  EXPECT_EQ(refusal(p), "rows with padding");
  p = softmax(40, 16);
  p.context.options.causal = false;
  p.context.cross = true;
  EXPECT_EQ(refusal(p), "attention to another sequence");
  EXPECT_EQ(refusal(softmax(40, 20)), "keys of 20 and values of 20 elements per head");
  Problem carried({.B = 1, .Tq = 40, .Tk = 40, .H = 2, .G = 2, .K = 16, .V = 16, .P = 3});
  carried.context.options.causal = true;
  EXPECT_EQ(refusal(carried), "carried keys");
}

TEST_F(CudaCudnnSoftmax, IsRefusedOnGpusThatDoNotRepeatTheirBits) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "needs an emulated device";
  const Problem p = softmax(48, 24);
  setenv("LINNET_EMULATED_CAPABILITY", "100", 1);
  EXPECT_EQ(test::message_of<UsageError>([&] { by(KernelChoice::cudnn, p); }),
            "block attention: backend cudnn was requested, but cuDNN repeats the bits of its "
            "gradients on GPUs of compute capability 8 and 9 alone, and this one has 10.0; use "
            "backend auto");
  unsetenv("LINNET_EMULATED_CAPABILITY");
  by(KernelChoice::cudnn, p);
}

}  // namespace
}  // namespace linnet
