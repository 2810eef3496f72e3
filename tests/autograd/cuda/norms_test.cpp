// Norms on the device.
#include "autograd/norms.h"

#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using Variables = std::vector<Variable>;

constexpr NormKind kKinds[] = {NormKind::layer, NormKind::rms, NormKind::scale};

// x with gain and bias as the kind has them.
std::vector<Tensor> inputs_of(NormKind kind, const Shape& shape) {
  const int64_t channels = shape[-1];
  return {random_tensor(shape, "x"),
          random_tensor({kind == NormKind::scale ? 1 : channels}, "gain"),
          kind == NormKind::layer ? random_tensor({channels}, "bias") : Tensor()};
}

TEST(CudaNorms, AgreeWithDouble) {
  for (const NormKind kind : kKinds) {
    for (const int64_t channels : {1, 33, 264}) {
      // 2 x 151 rows: three blocks of rows; two of columns that are read 16 bytes at a time.
      EXPECT_TRUE(test::precisions_agree(
          [kind](const Variables& v) {
            return Variables{norm(v[0], v[1], v[2], {kind, 1e-2})};
          },
          inputs_of(kind, {2, 151, channels}), 60, kGpu))
          << static_cast<int>(kind) << " " << channels;
    }
  }
}

TEST(CudaNorms, NeedNeitherGainNorBias) {
  for (const NormKind kind : kKinds) {
    EXPECT_TRUE(test::precisions_agree(
        [kind](const Variables& v) {
          return Variables{norm(v[0], {}, {}, {kind, 1e-2})};
        },
        {random_tensor({7, 65}, "x")}, 20, kGpu));
  }
}

TEST(CudaNorms, ResidualSumsAgreeWithDouble) {
  for (const NormKind kind : kKinds) {
    for (const double p : {0.0, 0.3}) {
      std::vector<Tensor> inputs = inputs_of(kind, {2, 9, 37});
      inputs.push_back(random_tensor({2, 9, 37}, "branch"));
      EXPECT_TRUE(test::precisions_agree(
          [&](const Variables& v) {
            DropoutSpec dropout;
            dropout.probability = p;
            dropout.key = RandomKey{1, 2, 3};
            dropout.place.examples = Tensor::full({2}, 4, DType::i64, v[0].value().device());
            const auto [sum, normed] = residual_norm(v[0], v[3], dropout, v[1], v[2], {kind, 1e-2});
            return Variables{sum, normed};
          },
          // One gain for all 666 elements: their products nearly cancel in its gradient.
          inputs, kind == NormKind::scale ? 200 : 40, kGpu));
    }
  }
}

DropoutSpec dropout_of(double probability, const Tensor& x) {
  DropoutSpec dropout;
  dropout.probability = probability;
  dropout.key = RandomKey{1, 2, 3};
  dropout.place.examples = Tensor::from(std::vector<int64_t>{4, 9}, {2}, x.device());
  return dropout;
}

// Rows that are read 16 bytes at a time, and those that are not.
TEST(CudaNorms, ResidualSumsHaveTheBitsOfBothKernels) {
  for (const NormKind kind : kKinds) {
    for (const int64_t channels : {37, 40, 264}) {
      std::vector<Tensor> inputs = inputs_of(kind, {2, 5, channels});
      inputs.push_back(random_tensor({2, 5, channels}, "branch"));
      for (const double p : {0.0, 0.3}) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const auto run = [&](bool one) {
            return test::run_in(
                dtype,
                [&](const Variables& v) {
                  const DropoutSpec dropout = dropout_of(p, v[0].value());
                  const NormSpec spec{kind, 1e-2};
                  if (one) {
                    const auto [sum, normed] = residual_norm(v[0], v[3], dropout, v[1], v[2], spec);
                    return Variables{sum, normed};
                  }
                  const Variable sum = residual_dropout(v[0], v[3], dropout);
                  return Variables{sum, norm(sum, v[1], v[2], spec)};
                },
                inputs, kGpu);
          };
          const test::Run one = run(true), both = run(false);
          const auto label = concat(static_cast<int>(kind), ", ", channels, " channels, p ", p);
          for (size_t i = 0; i < 2; ++i) {
            EXPECT_TRUE(test::same_bits(one.outputs[i].to(Device{}), both.outputs[i].to(Device{})))
                << label << ", output " << i;
          }
          // What dropout lets through of the gradient of the residual.
          const Tensor dx = one.gradients[0];
          const Tensor dbranch = dropout(Variable(dx), dropout_of(p, dx)).value();
          EXPECT_TRUE(test::same_bits(one.gradients.back().to(Device{}), dbranch.to(Device{})))
              << label;
        }
      }
    }
  }
}

// A sum that is made first, as where a recomputed block ends, and normed behind: the same bits.
TEST(CudaNorms, AResidualThatIsSummedBeforeHasTheSameBits) {
  for (const NormKind kind : kKinds) {
    for (const double probability : {0.0, 0.4}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto run = [&](bool before) {
          return test::run_in(
                     dtype,
                     [&](const Variables& v) {
                       const NormSpec spec{kind, 1e-5};
                       const DropoutSpec dropout = dropout_of(probability, v[0].value());
                       const Variable sum =
                           before ? residual_dropout(v[0], v[1], dropout) : Variable();
                       const auto [x, normed] =
                           before ? residual_norm(sum, {}, {}, v[2], {}, spec)
                                  : residual_norm(v[0], v[1], dropout, v[2], {}, spec);
                       return Variables{x, normed};
                     },
                     {random_tensor({2, 3, 40}, "x"), random_tensor({2, 3, 40}, "b"),
                      random_tensor({kind == NormKind::scale ? 1 : 40}, "gain")},
                     kGpu)
              .all();
        };
        const std::vector<Tensor> at_once = run(false), before = run(true);
        for (size_t i = 0; i < before.size(); ++i) {
          EXPECT_TRUE(test::same_bits(at_once[i].to(Device{}), before[i].to(Device{})))
              << static_cast<int>(kind) << " p " << probability << " tensor " << i;
        }
      }
    }
  }
}

TEST(CudaNorms, ResidualSumIsOneKernelEachWay) {
  for (const double p : {0.0, 0.3}) {
    const auto leaf = [](const Shape& shape) {
      return Variable(random_tensor(shape, "x", DType::bf16).to(kGpu), true);
    };
    const Variable x = leaf({2, 3, 16}), branch = leaf({2, 3, 16}), gain = leaf({16});
    for (const Variable& each : {x, branch, gain}) {
      Variable(each).set_grad(Tensor::zeros(each.shape(), DType::bf16, kGpu));
    }
    const Tensor seed = Tensor::zeros({2, 3, 16}, DType::bf16, kGpu);
    const DropoutSpec dropout = dropout_of(p, seed);
    std::pair<Variable, Variable> both;
    set_fill_uninitialized(false);  // tests do, and it would count
    const auto operations_of = [](const auto& work) {
      return cuda::Graph(cuda::make_graph_memory(0), work).operations();
    };
    EXPECT_EQ(operations_of([&] { both = residual_norm(x, branch, dropout, gain, {}, {}); }), 1U);
    // dx and dbranch; the parts of the gain's gradient and two to add them; an addition per leaf.
    EXPECT_EQ(operations_of([&] { backward({both.first, both.second}, {seed, seed}); }), 6U);
    set_fill_uninitialized(true);
  }
}

TEST(CudaNorms, ScaleNormsFloorIsConstant) {
  const Tensor small = random_tensor({3, 20}, "x", DType::f64, 1e-4);
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) {
        return Variables{norm(v[0], v[1], {}, {NormKind::scale, 1e-2})};
      },
      {small, random_tensor({1}, "gain")}, 20, kGpu));
}

TEST(CudaNorms, NanStaysInItsRow) {
  for (const NormKind kind : kKinds) {
    const Tensor x = random_tensor({3, 5}, "x", DType::f32).to(kGpu);
    x.slice(7, {1}).fill(NAN);
    const std::vector<float> y = norm(Variable(x), {}, {}, {kind, 1e-5}).value().to_vector<float>();
    for (size_t i = 0; i < 15; ++i) EXPECT_EQ(std::isnan(y[i]), i / 5 == 1) << i;
  }
}

TEST(CudaNorms, NoRowsGiveZeroGradients) {
  const Variable x(Tensor::zeros({2, 0, 5}, DType::f32, kGpu), true);
  const Variable gain(Tensor::full({5}, 1, DType::f32, kGpu), true);
  backward({norm(x, gain, {}, {})}, {Tensor::zeros({2, 0, 5}, DType::f32, kGpu)});
  EXPECT_EQ(gain.grad().to_vector<float>(), std::vector<float>(5, 0));
}

}  // namespace
}  // namespace linnet
