// A small network of all that a decoder needs, on the device: tied table, recomputation,
// repetition.
#include "autograd/dropout.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "autograd/loss.h"
#include "autograd/norms.h"
#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::same_bits;
using Variables = std::vector<Variable>;

constexpr int64_t kRows = 2, kTime = 11, kWidth = 20, kVocabulary = 30, kHidden = 37;

// The loss of one block on fixed tokens. Inputs: the table (used twice), two matrices, a bias,
// gain.
Variables loss_of(const Variables& v, bool forget) {
  const Device device = v[0].value().device();
  std::vector<int32_t> tokens(static_cast<size_t>(kRows * kTime));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % kVocabulary);
  const Tensor ids = Tensor::from(tokens, {kRows, kTime}, device);
  DropoutSpec dropout;
  dropout.probability = 0.2;
  dropout.key = RandomKey{3, 4, 0}.at("block");
  dropout.place.examples = Tensor::from(std::vector<int64_t>{5, 6}, {kRows}, device);
  const auto block = [=](const Variables& in) {
    const Variable hidden = linear(in[0], v[1], v[3], Activation::gelu);
    return Variables{
        residual_norm(in[0], linear(hidden, v[2]), dropout, v[4], {}, {NormKind::rms}).second};
  };
  const Variable x =
      add_sinusoidal(embedding(ids, v[0], 2), counted_positions(kRows, kTime, 3, device));
  const Variable y = forget ? recompute(block, {x}, {v[1], v[2], v[3], v[4]})[0] : block({x})[0];
  return {output_cross_entropy(y, v[0], ids)};
}

std::vector<Tensor> inputs() {
  return {random_tensor({kVocabulary, kWidth}, "table", DType::f64, 0.3),
          random_tensor({kHidden, kWidth}, "in", DType::f64, 0.3),
          random_tensor({kWidth, kHidden}, "out", DType::f64, 0.3),
          random_tensor({kHidden}, "bias"), random_tensor({kWidth}, "gain")};
}

TEST(CudaNetwork, AgreesWithDouble) {
  for (const bool forget : {false, true}) {
    EXPECT_TRUE(test::precisions_agree([forget](const Variables& v) { return loss_of(v, forget); },
                                       inputs(), 60, kGpu));
  }
}

TEST(CudaNetwork, RepeatsItselfBitForBitAlsoWhenRecomputed) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto run = [&](bool forget) {
      return test::run_in(
          dtype, [forget](const Variables& v) { return loss_of(v, forget); }, inputs(), kGpu);
    };
    const test::Run first = run(false);
    for (const bool forget : {false, true}) {
      const test::Run again = run(forget);
      EXPECT_TRUE(same_bits(again.outputs[0].to(Device{}), first.outputs[0].to(Device{})));
      for (size_t i = 0; i < first.gradients.size(); ++i) {
        EXPECT_TRUE(same_bits(again.gradients[i].to(Device{}), first.gradients[i].to(Device{})))
            << i;
      }
    }
  }
}

}  // namespace
}  // namespace linnet
