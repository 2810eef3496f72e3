// The memory that an update holds besides weights and optimizer state.
#include <gtest/gtest.h>

#include "core/gemm.h"
#include "recipes/engine/bench/train.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

constexpr int64_t kTokens = 128, kWidth = 64;

class CudaUpdateMemory : public test::TinyRun {
 protected:
  // Of a LAVO model of so many layers with recomputation: the peak besides weights, optimizer state
  // and gradients, in tensors of a bf16 number a token and channel. Without CUDA graphs, which keep
  // a little more than is used at once.
  double activations(int64_t layers) const {
    const std::string data = concat(
        "{kind: text, train: [", folder_ / "long.txt", "], validation: [", folder_ / "valid0.txt",
        "], test: [", folder_ / "test0.txt", "], context: ", kTokens, ", cache: false}");
    const std::string model =
        concat("{kind: decoder, layers: ", layers, ", width: ", kWidth, ", heads: 2,",
               " positions: none, attention: {name: lavo, rank: 32, window: 16}}");
    const ConfigNode recipe = parse_yaml(
        concat("name: memory\ndata: ", data, "\nmodel: ", model,
               "\noptim: {kind: adamw, lr: 0.001}\n",
               "train: {max_steps: 3, examples_per_update: 1, micro_batch: 1, precision: bf16, ",
               "recompute: block, cuda_graph: false}\n"),
        "recipe");
    const TrainBench point = bench_train({{"", recipe}}, 1, test::kGpu).at(0);
    const double gradients = 4.0 * static_cast<double>(point.parameters);
    return (static_cast<double>(point.working_bytes) - gradients) / (2 * kTokens * kWidth);
  }
};

TEST_F(CudaUpdateMemory, RecomputationLeavesTheInputOfEachLayer) {
  folder_.write("long.txt", test::some_text(4 * kTokens, 7));
  // The first product on a GPU takes a workspace that lasts.
  const Tensor x = Tensor::zeros({16, 16}, DType::bf16, test::kGpu);
  gemm(x, Transpose::no, x, Transpose::no, x.clone());
  const double one = activations(1), three = activations(3);
  EXPECT_LE(one, 36);  // inside a block, hidden ones four times as wide
  EXPECT_GE(three - one, 2);
  EXPECT_LE(three - one, 2.5);
}

}  // namespace
}  // namespace linnet
