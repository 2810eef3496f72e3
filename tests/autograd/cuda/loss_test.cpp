// Cross-entropy on the device.
#include "autograd/loss.h"

#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::ids;
using test::kGpu;
using test::random_tensor;
using Variables = std::vector<Variable>;

Tensor some_targets(int64_t count, int32_t classes) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 4 == 3 ? -1 : static_cast<int32_t>(i * i % static_cast<size_t>(classes));
  }
  return Tensor::from(values, {count});
}

Tensor beside(const Variable& variable, const Tensor& values) {
  return values.to(variable.value().device());
}

TEST(CudaLoss, OutputCrossEntropyAgreesWithDouble) {
  for (const int32_t classes : {2, 300, 1000}) {
    const Tensor targets = some_targets(90, classes);
    EXPECT_TRUE(test::precisions_agree(
        [&](const Variables& v) {
          return Variables{output_cross_entropy(v[0], v[1], beside(v[0], targets))};
        },
        {random_tensor({3, 30, 24}, "hidden", DType::f64, 0.3),
         random_tensor({classes, 24}, "weight", DType::f64, 0.3)},
        40, kGpu))
        << classes;
  }
}

TEST(CudaLoss, TakesTheTokensInChunks) {
  // At most 2^24 logits at a time: 4,097 tokens of 2^12 classes are two chunks.
  const int64_t tokens = 4097, classes = int64_t{1} << 12;
  const Tensor targets = some_targets(tokens, static_cast<int32_t>(classes));
  const Tensor hidden = random_tensor({tokens, 2}, "hidden", DType::f32);
  const Tensor weight = random_tensor({classes, 2}, "weight", DType::f32);
  const Variable x(hidden.to(kGpu), true), w(weight.to(kGpu), true);
  reset_peak_memory(kGpu);
  const size_t before = allocated_bytes(kGpu);
  const Variable loss = output_cross_entropy(x, w, targets.to(kGpu));
  const size_t table = w.value().bytes();
  EXPECT_LT(peak_allocated_bytes(kGpu) - before, (size_t{64} << 20) + table + (size_t{1} << 20));
  backward(loss);
  const Variable host_x(hidden, true), host_w(weight, true);
  const Variable expected = output_cross_entropy(host_x, host_w, targets);
  backward(expected);
  EXPECT_NEAR(loss.value().item(), expected.value().item(), 1e-6 * expected.value().item());
  EXPECT_CLOSE(x.grad(), host_x.grad(), 1e-5);
  EXPECT_CLOSE(w.grad(), host_w.grad(), 1e-5);
  EXPECT_CLOSE(output_token_losses(x.value(), w.value(), targets.to(kGpu)),
               output_token_losses(hidden, weight, targets), 1e-6);
}

// Each chunk rewrites the gradient of the whole table: those of wide tables have 4,096 tokens.
TEST(CudaLoss, ChunksOfWideTablesHaveManyTokens) {
  const auto operations = [](int64_t tokens, int64_t classes) {
    const Variable x(Tensor::zeros({tokens, 2}, DType::bf16, kGpu), true);
    const Variable w(Tensor::zeros({classes, 2}, DType::bf16, kGpu), true);
    const Tensor targets = Tensor::zeros({tokens}, DType::i32, kGpu);
    const cuda::Graph graph(cuda::make_graph_memory(0),
                            [&] { output_cross_entropy(x, w, targets); });
    return graph.operations();
  };
  for (const int64_t classes : {int64_t{1} << 13, int64_t{1} << 15}) {
    const size_t one_chunk = operations(1, classes);
    EXPECT_EQ(operations(4096, classes), one_chunk);
    EXPECT_GT(operations(4097, classes), one_chunk);
  }
  // At most 2^27 logits: of the words of GPT-2, filled up to 128, and of 2^17 words.
  for (const auto& [classes, most] :
       {std::pair<int64_t, int64_t>{50304, 2668}, {int64_t{1} << 17, 1024}}) {
    EXPECT_EQ(operations(most, classes), operations(1, classes));
    EXPECT_GT(operations(most + 1, classes), operations(1, classes));
  }
}

TEST(CudaLoss, CrossEntropyOfLogitsAgreesWithDouble) {
  for (const int32_t classes : {1, 10, 700}) {
    const Tensor targets = some_targets(31, classes);
    EXPECT_TRUE(test::precisions_agree(
        [&](const Variables& v) { return Variables{cross_entropy(v[0], beside(v[0], targets))}; },
        {random_tensor({31, classes}, "logits")}, 20, kGpu))
        << classes;
  }
}

TEST(CudaLoss, FactorsComeFromTheDevice) {
  const Tensor targets = ids({1, 0}, {2}).to(kGpu);
  const Tensor hidden = random_tensor({2, 3}, "hidden", DType::f32).to(kGpu);
  const Tensor weight = random_tensor({4, 3}, "weight", DType::f32).to(kGpu);
  const Variable once(hidden, true), scaled(hidden, true);
  backward(output_cross_entropy(once, Variable(weight), targets));
  const Variable loss = output_cross_entropy(scaled, Variable(weight), targets);
  EXPECT_EQ(loss.value().device(), kGpu);
  EXPECT_EQ(loss.dtype(), DType::f64);
  backward({loss}, {Tensor::full({}, 0.25, DType::f64, kGpu)});
  const std::vector<float> a = once.grad().to_vector<float>();
  const std::vector<float> b = scaled.grad().to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(b[i], 0.25f * a[i]);
}

TEST(CudaLoss, FarLogitsStayFiniteAndBadTargetsGiveNan) {
  const Tensor logits = Tensor::from(std::vector<float>{1e4f, -1e4f, 0, 0, 3e4f, 0}, {2, 3}, kGpu);
  const Variable leaf(logits.clone(), true);
  const Variable loss = cross_entropy(leaf, ids({0, 1}, {2}).to(kGpu));
  EXPECT_EQ(loss.value().item(), 0);
  backward(loss);
  for (const float value : leaf.grad().to_vector<float>()) EXPECT_EQ(value, 0);
  for (const int32_t bad : {-2, 3}) {
    const Variable again(logits.clone(), true);
    const Variable wrong = cross_entropy(again, ids({bad, -1}, {2}).to(kGpu));
    EXPECT_TRUE(std::isnan(wrong.value().item()));
    backward(wrong);
    EXPECT_TRUE(std::isnan(again.grad().to_vector<float>()[0]));
    EXPECT_EQ(again.grad().to_vector<float>()[3], 0) << "the unscored row";
  }
}

TEST(CudaLoss, NoTokensLoseNothing) {
  const Variable hidden(Tensor::zeros({0, 3}, DType::f32, kGpu), true);
  const Variable weight(random_tensor({4, 3}, "weight", DType::f32).to(kGpu), true);
  const Variable loss = output_cross_entropy(hidden, weight, Tensor::zeros({0}, DType::i32, kGpu));
  EXPECT_EQ(loss.value().item(), 0);
  backward(loss);
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(12, 0));
}

}  // namespace
}  // namespace linnet
