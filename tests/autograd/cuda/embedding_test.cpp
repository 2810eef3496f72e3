// Table lookups and positions on the device.
#include "autograd/embedding.h"

#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::ids;
using test::kGpu;
using test::random_tensor;
using Variables = std::vector<Variable>;

// Ids on the device of a variable.
Tensor beside(const Variable& variable, const Tensor& values) {
  return values.to(variable.value().device());
}

Tensor scattered_ids(int64_t count, int32_t rows) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * i % rows);
  return Tensor::from(values, {count});
}

// 37 rows are three blocks of rows. Channels that are read one at a time, in one block or two, and
// 16 bytes at a time; of many tokens in parts.
TEST(CudaEmbedding, AgreesWithDouble) {
  const auto agree = [](int64_t tokens, int64_t channels) {
    const Tensor id = scattered_ids(tokens, 37);
    EXPECT_TRUE(test::precisions_agree(
        [&](const Variables& v) { return Variables{embedding(beside(v[0], id), v[0], 1.25)}; },
        {random_tensor({37, channels}, "table")}, 40, kGpu))
        << tokens << " tokens, " << channels << " channels";
  };
  for (const int64_t channels : {130, 40}) {
    for (const int64_t tokens : {1, 45, 5000}) agree(tokens, channels);
  }
  agree(150, 1032);
}

TEST(CudaEmbedding, AddsToWhatAnotherUseWrote) {
  for (const int64_t channels : {3, 16}) {
    EXPECT_TRUE(test::precisions_agree(
        [](const Variables& v) {
          return Variables{embedding(beside(v[0], ids({1, 3}, {2})), v[0]),
                           embedding(beside(v[0], ids({3, 0, 3, 3}, {2, 2})), v[0], 3)};
        },
        {random_tensor({5, channels}, "table")}, 8, kGpu));
  }
}

// Vectors of 16 bytes are read only where all arrays begin on 16 bytes.
TEST(CudaEmbedding, ReadsArraysThatBeginAnywhere) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto inside = [&](const Tensor& own) {
      const Tensor larger = Tensor::empty({own.elements() + 3}, dtype, kGpu);
      const Tensor view = larger.slice(3, own.shape());
      view.copy_from(own);
      return view;
    };
    const auto run = [&](bool views) {
      const auto placed = [&](const Shape& shape, const char* name) {
        const Tensor own = random_tensor(shape, name, dtype).to(kGpu);
        return views ? inside(own) : own;
      };
      const Variable table(placed({5, 16}, "table"), true);
      const Variable x(placed({1, 4, 3, 16}, "x"), true);
      const Variable y = embedding(ids({3, 0, 3, 3}, {4}).to(kGpu), table);
      const Variable z = rotary(x, counted_positions(1, 4, 7, kGpu), 16, 500);
      backward({y, z}, {placed({4, 16}, "dy"), placed({1, 4, 3, 16}, "dz")});
      const Variable encoded =
          add_sinusoidal(Variable(placed({1, 4, 16}, "e")), counted_positions(1, 4, 7, kGpu));
      return std::vector<Tensor>{y.value(), z.value(), table.grad(), x.grad(), encoded.value()};
    };
    const std::vector<Tensor> aligned = run(false), anywhere = run(true);
    for (size_t i = 0; i < aligned.size(); ++i) {
      EXPECT_TRUE(test::same_bits(anywhere[i].to(Device{}), aligned[i].to(Device{}))) << i;
    }
  }
}

TEST(CudaEmbedding, Bf16TablesSumInF32) {
  const Tensor id = ids(std::vector<int32_t>(1000, 1), {1000}).to(kGpu);
  for (const DType buffer : {DType::bf16, DType::f32}) {
    Variable table(Tensor::zeros({2, 4}, DType::bf16, kGpu), true);
    table.set_grad(Tensor::full({2, 4}, 8, buffer, kGpu));
    backward({embedding(id, table)}, {Tensor::full({1000, 4}, 1, DType::bf16, kGpu)});
    EXPECT_EQ(table.grad().to_vector<float>(),
              (std::vector<float>{8, 8, 8, 8, 1008, 1008, 1008, 1008}));
  }
}

TEST(CudaEmbedding, IdsOutsideTheTableGiveNanAndNoGradient) {
  const Variable table(Tensor::full({3, 2}, 5, DType::f32, kGpu), true);
  const Variable y = embedding(ids({-1, 2, 3, -1}, {4}).to(kGpu), table);
  const std::vector<float> values = y.value().to_vector<float>();
  for (const size_t i : {0, 1, 4, 5, 6, 7}) EXPECT_TRUE(std::isnan(values[i])) << i;
  EXPECT_EQ(values[2], 5);
  backward({y}, {Tensor::full({4, 2}, 1, DType::f32, kGpu)});
  EXPECT_EQ(table.grad().to_vector<float>(), (std::vector<float>{0, 0, 0, 0, 1, 1}));
}

TEST(CudaEmbedding, NoTokensNoGradient) {
  const Variable table(random_tensor({3, 2}, "table", DType::f32).to(kGpu), true);
  const Variable y = embedding(Tensor::zeros({0, 4}, DType::i32, kGpu), table);
  EXPECT_EQ(y.shape(), (Shape{0, 4, 2}));
  backward({y}, {Tensor::zeros({0, 4, 2}, DType::f32, kGpu)});
  EXPECT_EQ(table.grad().to_vector<float>(), std::vector<float>(6, 0));
}

TEST(CudaPositions, CountFromAnOffset) {
  const Tensor got = counted_positions(2, 3, 7, kGpu);
  EXPECT_EQ(got.device(), kGpu);
  EXPECT_EQ(got.to_vector<int32_t>(), (std::vector<int32_t>{7, 8, 9, 7, 8, 9}));
  EXPECT_EQ(counted_positions(2, 0, 7, kGpu).shape(), (Shape{2, 0}));
}

TEST(CudaPositions, IdsMoveOnePlaceToTheRight) {
  const Tensor got = shifted_right(ids({1, 2, 3, 4, 5, 6}, {2, 3}).to(kGpu), 9);
  EXPECT_EQ(got.device(), kGpu);
  EXPECT_EQ(got.to_vector<int32_t>(), (std::vector<int32_t>{9, 1, 2, 9, 4, 5}));
}

TEST(CudaPositions, SinusoidalAgreesWithDouble) {
  const Tensor at = ids({0, 1, 77, 1000003, 5, 5}, {2, 3});
  for (const int64_t width : {1, 2, 5, 64, 520}) {
    EXPECT_TRUE(test::precisions_agree(
        [&](const Variables& v) { return Variables{add_sinusoidal(v[0], beside(v[0], at))}; },
        {random_tensor({2, 3, width}, "x")}, 4, kGpu));
  }
}

// Channels behind those that are rotated are copied, also in a vector that holds both.
TEST(CudaPositions, RotaryKeepsWhatItDoesNotRotate) {
  const Tensor x = Tensor::full({1, 2, 1, 16}, INFINITY, DType::bf16, kGpu);
  x.slice(0, {4}).fill(1);
  const std::vector<float> y =
      rotary(Variable(x), counted_positions(1, 2, 0, kGpu), 4, 500).value().to_vector<float>();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], 1) << i;
  for (size_t i = 4; i < 16; ++i) EXPECT_EQ(y[i], INFINITY) << i;
  for (size_t i = 20; i < 32; ++i) EXPECT_EQ(y[i], INFINITY) << i;
}

TEST(CudaPositions, RotaryAgreesWithDouble) {
  const Tensor at = ids({0, 1, 77, 1000003, 5, 5}, {2, 3});
  // Heads of 6 and 7 channels are read one at a time, those of 24 16 bytes at a time.
  for (const int64_t width : {0, 2, 6, 24}) {
    for (const int64_t channels : {6, 7, 24}) {
      if (width > channels) continue;
      EXPECT_TRUE(test::precisions_agree(
          [&](const Variables& v) { return Variables{rotary(v[0], beside(v[0], at), width, 500)}; },
          {random_tensor({2, 3, 5, channels}, "x")}, 4, kGpu))
          << width << " of " << channels;
    }
  }
}

}  // namespace
}  // namespace linnet
