// Table lookups and positions: definitions, finite differences, precisions, threads, refusals.
#include "autograd/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/arithmetic.h"
#include "tests/autograd/op_cases.h"

namespace linnet {
namespace {

using test::ids;
using test::random_tensor;
using Variables = std::vector<Variable>;

TEST(Embedding, LooksUpRowsOfAnyIdShape) {
  const Variable table(random_tensor({5, 3}, "table"));
  const Variable y = embedding(ids({4, 0, 4, 1}, {2, 2}), table, 2);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(y.value().data<double>()[6 + c], 2 * table.value().data<double>()[12 + c]);
    EXPECT_EQ(y.value().data<double>()[9 + c], 2 * table.value().data<double>()[3 + c]);
  }
  EXPECT_EQ(embedding(Tensor::zeros({0}, DType::i32), table).shape(), (Shape{0, 3}));
}

TEST(Embedding, GradientsAgreeWithFiniteDifferences) {
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        return Variables{embedding(ids({1, 3, 1, 1}, {2, 2}), v[0], 0.5)};
      },
      {random_tensor({5, 3}, "table")}));
  // Twice from one table: the second adds to the gradient that the first wrote.
  EXPECT_TRUE(test::gradients_agree(
      [](const Variables& v) {
        return Variables{embedding(ids({1, 3}, {2}), v[0]), embedding(ids({3, 0}, {2}), v[0], 3)};
      },
      {random_tensor({5, 3}, "table")}));
}

TEST(Embedding, OtherPrecisionsAgreeWithDouble) {
  std::vector<int32_t> tokens(600);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 7);
  // Each row sums about 100 gradients: in f32 also for bf16 tables, whose own sums would stall.
  EXPECT_TRUE(test::precisions_agree(
      [&](const Variables& v) { return Variables{embedding(ids(tokens, {600}), v[0], 1.25)}; },
      {random_tensor({7, 40}, "table")}, 100 / 256.0 + 8));
}

TEST(Embedding, Bf16TablesWithoutABufferSumInF32) {
  const Variable table(Tensor::zeros({2, 4}, DType::bf16), true);
  const Variable y = embedding(ids(std::vector<int32_t>(1000, 1), {1000}), table);
  backward({y}, {Tensor::full({1000, 4}, 1, DType::bf16)});
  EXPECT_EQ(table.grad().to_vector<float>(),
            (std::vector<float>{0, 0, 0, 0, 1000, 1000, 1000, 1000}));
}

TEST(Embedding, ThreadsDoNotChangeABit) {
  std::vector<int32_t> tokens(3000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 11);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(test::threads_agree(
        dtype, [&](const Variables& v) { return Variables{embedding(ids(tokens, {3000}), v[0])}; },
        {random_tensor({11, 64}, "table")}));
  }
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  const Variable table(Tensor::zeros({5, 3}));
  for (const int32_t bad : {-1, 5}) {
    const std::string message = test::message_of<Error>([&] {
      embedding(ids({0, bad}, {2}), table);
    });
    EXPECT_NE(message.find(std::to_string(bad)), std::string::npos) << message;
  }
  EXPECT_THROW(embedding(Tensor::zeros({2}, DType::i64), table), Error);
  EXPECT_THROW(embedding(ids({0}, {1}), Variable(Tensor::zeros({5}))), Error);
}

TEST(CountedPositions, BeginAtTheOffset) {
  EXPECT_EQ(counted_positions(2, 3, 7, {}).to_vector<int32_t>(),
            (std::vector<int32_t>{7, 8, 9, 7, 8, 9}));
  EXPECT_EQ(counted_positions(2, 0, 7, {}).shape(), (Shape{2, 0}));
  EXPECT_THROW(counted_positions(1, 3, (int64_t{1} << 31) - 2, {}), Error);
}

TEST(ShiftedRight, EachRowBeginsWithTheFirst) {
  EXPECT_EQ(shifted_right(ids({1, 2, 3, 4, 5, 6}, {2, 3}), 9).to_vector<int32_t>(),
            (std::vector<int32_t>{9, 1, 2, 9, 4, 5}));
  EXPECT_EQ(shifted_right(ids({}, {2, 0}), 9).shape(), (Shape{2, 0}));
  EXPECT_THROW(shifted_right(Tensor::zeros({2, 3}, DType::i64), 9), Error);
}

TEST(Sinusoidal, FollowsItsDefinitionAtAnyPosition) {
  for (const int64_t width : {1, 2, 5, 8}) {
    const std::vector<int32_t> at{0, 1, 77, 1000003, 5, 5};
    const Tensor y =
        add_sinusoidal(Variable(Tensor::zeros({2, 3, width}, DType::f64)), ids(at, {2, 3})).value();
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        const double angle =
            at[static_cast<size_t>(row)] *
            std::pow(10000.0, -static_cast<double>(c - c % 2) / static_cast<double>(width));
        ASSERT_NEAR(y.data<double>()[row * width + c],
                    c % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-9);
      }
    }
  }
}

TEST(Sinusoidal, PositionsCloseTogetherAndFarApartGiveTheSameBits) {
  const Variable zeros(Tensor::zeros({1, 4, 6}));
  const Tensor close = add_sinusoidal(zeros, ids({7, 5, 6, 7}, {1, 4})).value();
  const Tensor apart = add_sinusoidal(zeros, ids({7, 5, -2147483647, 2147483647}, {1, 4})).value();
  EXPECT_TRUE(test::same_bits(close.slice(0, {12}), apart.slice(0, {12})));
  EXPECT_TRUE(test::same_bits(close.slice(0, {6}), close.slice(18, {6})));
  const Variable none(Tensor::zeros({0, 4, 6}));
  EXPECT_EQ(add_sinusoidal(none, Tensor::zeros({0, 4}, DType::i32)).shape(), (Shape{0, 4, 6}));
}

TEST(Sinusoidal, GradientsPrecisionsAndThreads) {
  const auto function = [](const Variables& v) {
    return Variables{add_sinusoidal(v[0], ids({0, 1, 2, 7, 8, 9}, {2, 3}))};
  };
  EXPECT_TRUE(test::gradients_agree(function, {random_tensor({2, 3, 5}, "x")}));
  EXPECT_TRUE(test::precisions_agree(function, {random_tensor({2, 3, 50}, "x")}, 3));
  std::vector<int32_t> positions(200);
  for (size_t i = 0; i < 200; ++i) positions[i] = static_cast<int32_t>(i);
  EXPECT_TRUE(
      test::threads_agree(DType::f32,
                          [&](const Variables& v) {
                            return Variables{add_sinusoidal(v[0], ids(positions, {2, 100}))};
                          },
                          {random_tensor({2, 100, 33}, "x")}));
}

TEST(Rotary, RotatesPairsAndKeepsTheRest) {
  const Tensor x = random_tensor({1, 2, 2, 6}, "x");
  const Tensor y = rotary(Variable(x), ids({0, 1000003}, {1, 2}), 4, 100).value();
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      const double* from = x.data<double>() + (t * 2 + h) * 6;
      const double* to = y.data<double>() + (t * 2 + h) * 6;
      for (int64_t i = 0; i < 2; ++i) {
        const double angle =
            (t == 0 ? 0 : 1000003) * std::pow(100.0, -2.0 * static_cast<double>(i) / 4);
        EXPECT_NEAR(to[2 * i], from[2 * i] * std::cos(angle) - from[2 * i + 1] * std::sin(angle),
                    1e-9);
        EXPECT_NEAR(to[2 * i + 1],
                    from[2 * i] * std::sin(angle) + from[2 * i + 1] * std::cos(angle), 1e-9);
      }
      EXPECT_EQ(to[4], from[4]);
      EXPECT_EQ(to[5], from[5]);
    }
  }
}

TEST(Rotary, ScoresDependOnDistanceOnly) {
  const Tensor q = random_tensor({1, 1, 1, 8}, "q");
  const Tensor k = random_tensor({1, 1, 1, 8}, "k");
  const auto score = [&](int32_t a, int32_t b) {
    const Tensor x = rotary(Variable(q), ids({a}, {1, 1}), 8).value();
    const Tensor y = rotary(Variable(k), ids({b}, {1, 1}), 8).value();
    double total = 0;
    for (int64_t i = 0; i < 8; ++i) total += x.data<double>()[i] * y.data<double>()[i];
    return total;
  };
  EXPECT_NEAR(score(3, 10), score(100003, 100010), 1e-9);
  EXPECT_GT(std::abs(score(3, 10) - score(3, 11)), 1e-3);
}

TEST(Rotary, GradientsPrecisionsAndThreads) {
  const auto function = [](const Variables& v) {
    return Variables{rotary(v[0], ids({0, 1, 2, 7, 8, 9}, {2, 3}), 4)};
  };
  EXPECT_TRUE(test::gradients_agree(function, {random_tensor({2, 3, 2, 6}, "x")}));
  EXPECT_TRUE(test::precisions_agree(function, {random_tensor({2, 3, 2, 6}, "x")}, 4));
  std::vector<int32_t> positions(200);
  for (size_t i = 0; i < 200; ++i) positions[i] = static_cast<int32_t>(i % 100);
  EXPECT_TRUE(test::threads_agree(DType::f32,
                                  [&](const Variables& v) {
                                    return Variables{rotary(v[0], ids(positions, {2, 100}), 16)};
                                  },
                                  {random_tensor({2, 100, 3, 16}, "x")}));
}

TEST(Positions, RefuseWhatDoesNotFit) {
  const Variable x(Tensor::zeros({2, 3, 4}));
  EXPECT_THROW(add_sinusoidal(x, ids({0, 1, 2}, {3})), Error);
  EXPECT_THROW(add_sinusoidal(x, Tensor::zeros({2, 3}, DType::i64)), Error);
  const Variable y(Tensor::zeros({1, 2, 2, 6}));
  const Tensor positions = ids({0, 1}, {1, 2});
  for (const int64_t width : {-2, 3, 8}) EXPECT_THROW(rotary(y, positions, width), Error) << width;
  EXPECT_THROW(rotary(y, positions, 4, 0), Error);
  EXPECT_THROW(rotary(y, positions, 4, std::nan("")), Error);
  EXPECT_THROW(rotary(y, ids({0}, {1, 1}), 4), Error);
}

}  // namespace
}  // namespace linnet
