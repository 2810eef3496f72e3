// Activations, affine maps, arithmetic and pooling on the device.
#include "autograd/activation.h"
#include "autograd/arithmetic.h"
#include "autograd/linear.h"
#include "autograd/pooling.h"
#include "core/cuda/backend.h"
#include "core/gemm.h"
#include "core/kernel_choice.h"
#include "tests/autograd/op_cases.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::ids;
using test::kGpu;
using test::random_tensor;
using Variables = std::vector<Variable>;

constexpr Activation kActivations[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                       Activation::silu, Activation::sigmoid};

TEST(CudaActivation, AgreesWithDouble) {
  for (const Activation activation : kActivations) {
    EXPECT_TRUE(test::precisions_agree(
        [activation](const Variables& v) { return Variables{activate(v[0], activation)}; },
        {random_tensor({3, 333}, "x", DType::f64, 3)}, 8, kGpu));
  }
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) { return Variables{silu_multiply(v[0], v[1])}; },
      {random_tensor({5, 77}, "gate"), random_tensor({5, 77}, "up")}, 8, kGpu));
}

TEST(CudaActivation, KeepsNanAndStaysFiniteFarOut) {
  for (const Activation activation : kActivations) {
    const Tensor x = Tensor::from(std::vector<float>{NAN, -1e30f, 1e30f, -200, 200}, {5}, kGpu);
    const Variable variable(x, true);
    const Variable y = activate(variable, activation);
    backward({y}, {Tensor::full({5}, 1, DType::f32, kGpu)});
    const std::vector<float> values = y.value().to_vector<float>();
    const std::vector<float> slopes = variable.grad().to_vector<float>();
    EXPECT_TRUE(std::isnan(values[0]));
    for (size_t i = 1; i < 5; ++i) {
      EXPECT_TRUE(std::isfinite(values[i])) << i;
      EXPECT_TRUE(std::isfinite(slopes[i])) << i;
    }
  }
}

// Vectors of 16 bytes are read only where all arrays begin on 16 bytes.
TEST(CudaActivation, ReadsArraysThatBeginAnywhere) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({41, 1}, "x", DType::f32).to(dtype).to(kGpu);
    const Variable inside(x.rows(1, 41)), own(x.rows(1, 41).clone());
    const auto same = [](const Variable& a, const Variable& b) {
      return test::same_bits(a.value().to(Device{}), b.value().to(Device{}));
    };
    EXPECT_TRUE(same(activate(inside, Activation::gelu), activate(own, Activation::gelu)));
    EXPECT_TRUE(same(silu_multiply(inside, own), silu_multiply(own, own)));
    EXPECT_TRUE(same(add(inside, own), add(own, own)));
  }
}

TEST(CudaLinear, AgreesWithDouble) {
  for (const Activation activation : {Activation::none, Activation::gelu, Activation::gelu_tanh}) {
    for (const bool biased : {false, true}) {
      // GELU by tanh goes into products of 24 columns, and into a kernel of its own for 21.
      for (const int64_t columns : {21, 24}) {
        EXPECT_TRUE(test::precisions_agree(
            [activation](const Variables& v) {
              return Variables{linear(v[0], v[1], v[2], activation)};
            },
            {random_tensor({3, 70, 33}, "x"), random_tensor({columns, 33}, "weight"),
             biased ? random_tensor({columns}, "bias") : Tensor()},
            40, kGpu));
      }
    }
  }
}

// Whether a product took in the operations after it. Rows of an odd number of elements are hardly
// aligned: there a GPU's library has no such algorithm that rounds once, and a kernel follows.
bool must_fuse(int64_t terms) {
  return terms % 8 == 0 || kCudaBackend == CudaBackend::emulated;
}

TEST(CudaLinear, ProductsTakeGeluBeforeTheyRound) {
  const auto on_device = [](const Shape& shape, const char* name) {
    return random_tensor(shape, name, DType::bf16).to(kGpu);
  };
  const auto host = [](const Tensor& t) { return t.to(Device{}).to(DType::f64); };
  for (const int64_t terms : {32, 33}) {
    const Tensor x = on_device({40, terms}, "x"), weight = on_device({24, terms}, "weight");
    const Tensor bias = on_device({24}, "bias");
    const Tensor y = Tensor::empty({40, 24}, DType::bf16, kGpu), before = y.clone();
    const Tensor sums = Tensor::empty({40, 24}, DType::f64), exact = sums.clone();
    gemm_bias(host(x), Transpose::no, host(weight), Transpose::yes, sums, host(bias));
    activation_forward(sums, Activation::gelu_tanh, exact);
    bool kept = false;
    for (const bool keeps : {false, true}) {
      const bool fused = gemm_gelu_tanh(x, Transpose::no, weight, Transpose::yes, y, bias,
                                        keeps ? before : Tensor());
      EXPECT_TRUE(fused || !must_fuse(terms)) << terms;
      if (!fused) continue;
      kept = keeps;
      // One rounding to bf16, not that of the sums besides.
      EXPECT_TRUE(test::close(host(y), exact, 1e-5, 0x1p-8)) << terms << " " << keeps;
    }
    EXPECT_TRUE(!kept || test::close(host(before), sums, 1e-5, 0x1p-8)) << terms;
    EXPECT_FALSE(gemm_gelu_tanh(x.to(Device{}), Transpose::no, weight.to(Device{}), Transpose::yes,
                                y.to(Device{}), bias.to(Device{}), {}));
  }
}

TEST(CudaLinear, ProductsTakeTheDerivativeOfGeluBeforeTheyRound) {
  const auto on_device = [](const Shape& shape, const char* name) {
    return random_tensor(shape, name, DType::bf16).to(kGpu);
  };
  const auto host = [](const Tensor& t) { return t.to(Device{}).to(DType::f64); };
  for (const int64_t terms : {32, 33}) {
    const Tensor dy = on_device({40, terms}, "dy"), weight = on_device({terms, 24}, "weight");
    const Tensor before = on_device({40, 24}, "before"), d = before.clone();
    const Tensor exact = Tensor::empty({40, 24}, DType::f64);
    gemm(host(dy), Transpose::no, host(weight), Transpose::no, exact);
    activation_backward(host(before), exact, Activation::gelu_tanh, exact);
    const bool fused = gemm_gelu_tanh_backward(dy, Transpose::no, weight, Transpose::no, d, before);
    EXPECT_TRUE(fused || !must_fuse(terms)) << terms;
    // One rounding to bf16, not that of the product besides; but cuBLASLt rounds the product first
    // (seen on an H200), as the kernel does that otherwise follows it.
    const double roundings = kCudaBackend == CudaBackend::on ? 0x1p-7 : 0x1p-8;
    EXPECT_TRUE(!fused || test::close(host(d), exact, 1e-5, roundings)) << terms;
    EXPECT_FALSE(gemm_gelu_tanh_backward(dy.to(Device{}), Transpose::no, weight.to(Device{}),
                                         Transpose::no, d.to(Device{}), before.to(Device{})));
    EXPECT_THROW(gemm_gelu_tanh_backward(dy, Transpose::no, weight, Transpose::no, d, dy), Error);
  }
}

TEST(CudaLinear, FeedForwardLayersAgreeWithDouble) {
  for (const bool biased : {false, true}) {
    // The derivative of GELU goes into products of 24 columns, and into a kernel of its own for 21.
    for (const int64_t hidden : {21, 24}) {
      EXPECT_TRUE(test::precisions_agree(
          [](const Variables& v) {
            return Variables{gelu_tanh_feed_forward(v[0], v[1], v[2], v[3], v[4])};
          },
          {random_tensor({3, 30, 17}, "x"), random_tensor({hidden, 17}, "in"),
           biased ? random_tensor({hidden}, "in bias") : Tensor(),
           random_tensor({9, hidden}, "out"), biased ? random_tensor({9}, "out bias") : Tensor()},
          40, kGpu));
    }
  }
}

TEST(CudaLinear, Bf16ParametersAccumulateInF32Buffers) {
  const Variable x(random_tensor({40, 16}, "x", DType::bf16).to(kGpu));
  Variable weight(random_tensor({8, 16}, "weight", DType::bf16).to(kGpu), true);
  Variable bias(random_tensor({8}, "bias", DType::bf16).to(kGpu), true);
  weight.set_grad(Tensor::full({8, 16}, 0.5, DType::f32, kGpu));
  bias.set_grad(Tensor::full({8}, 0.5, DType::f32, kGpu));
  const Tensor dy = random_tensor({40, 8}, "dy", DType::bf16);
  backward({linear(x, weight, bias)}, {dy.to(kGpu)});
  Variable host(random_tensor({8, 16}, "weight", DType::bf16), true),
      host_bias = Variable(random_tensor({8}, "bias", DType::bf16), true);
  host.set_grad(Tensor::full({8, 16}, 0.5));
  host_bias.set_grad(Tensor::full({8}, 0.5));
  backward({linear(Variable(x.value().to(Device{})), host, host_bias)}, {dy});
  EXPECT_CLOSE(weight.grad(), host.grad(), 1e-6);
  EXPECT_CLOSE(bias.grad(), host_bias.grad(), 1e-6);
}

TEST(CudaArithmetic, AgreesWithDouble) {
  EXPECT_TRUE(test::precisions_agree(
      [](const Variables& v) {
        return Variables{add(v[0], v[1]),      weighted_sum(v[0], 0.3, v[1], -2),
                         scale(v[0], 1.7),     multiply(v[0], v[1]),
                         multiply(v[0], v[0]), scale(reshape(v[1], {30, 11}), -1)};
      },
      {random_tensor({10, 33}, "a"), random_tensor({10, 33}, "b")}, 8, kGpu));
}

TEST(CudaArithmetic, CastsAndSumsStayOnTheDevice) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor values = random_tensor({10, 33}, "x", dtype);
    const Variable x(values.to(kGpu), true), host(values, true);
    const auto loss = [](const Variable& v) {
      return sum_all(scale(multiply(cast(v, DType::f32), cast(v, DType::f32)), 0.5));
    };
    const Variable y = loss(x);
    EXPECT_EQ(y.value().device(), kGpu);
    EXPECT_NEAR(y.value().item(), loss(host).value().item(), 1e-4);
    backward(y);
    backward(loss(host));
    test::expect_close_in(dtype, {x.grad()}, {values}, 2e-6,
                          [&] { return std::vector<Tensor>{host.grad()}; });
  }
}

TEST(CudaArithmetic, RefusesOperandsOnTwoDevices) {
  const Variable x(Tensor::zeros({3}, DType::f32, kGpu)), host(Tensor::zeros({3}));
  EXPECT_THROW(add(x, host), Error);
  EXPECT_THROW(multiply(host, x), Error);
}

TEST(CudaArithmetic, EmptyTensorsTakeNoLaunch) {
  const Variable x(Tensor::zeros({2, 0, 3}, DType::f32, kGpu), true);
  const Variable y = sum_all(activate(add(scale(x, 2), multiply(x, x)), Activation::silu));
  backward(y);
  EXPECT_EQ(y.value().item(), 0);
  EXPECT_EQ(x.grad().shape(), (Shape{2, 0, 3}));
}

TEST(CudaPooling, AgreesWithDouble) {
  const Tensor index = ids({2, 0}, {2});
  EXPECT_TRUE(test::precisions_agree(
      [&](const Variables& v) {
        return Variables{gather_time(v[0], index.to(v[0].value().device()))};
      },
      {random_tensor({2, 3, 41}, "x")}, 2, kGpu));
  std::vector<uint8_t> valid(3 * 37, 0);
  for (size_t i = 0; i < 2 * 37; ++i) valid[i] = i % 3 == 0 ? 1 : 0;  // the last row has none
  const Tensor mask = Tensor::from(valid, {3, 37});
  for (const bool by_length : {false, true}) {
    for (const bool masked : {false, true}) {
      EXPECT_TRUE(test::precisions_agree(
          [&](const Variables& v) {
            return Variables{
                mean_pool(v[0], masked ? mask.to(v[0].value().device()) : Tensor(), by_length)};
          },
          {random_tensor({3, 37, 41}, "x")}, 8, kGpu));
    }
  }
  for (const bool masked : {false, true}) {
    EXPECT_TRUE(test::precisions_agree(
        [&](const Variables& v) {
          return Variables{last_pool(v[0], masked ? mask.to(v[0].value().device()) : Tensor())};
        },
        {random_tensor({3, 37, 41}, "x")}, 2, kGpu));
  }
}

TEST(CudaPooling, MasksHideNanAndWrongIndicesGiveIt) {
  const Tensor x = Tensor::full({1, 2, 3}, 4, DType::f32, kGpu);
  x.slice(3, {3}).fill(NAN);
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0}, {1, 2}, kGpu);
  EXPECT_EQ(mean_pool(Variable(x), mask, false).value().to_vector<float>(),
            (std::vector<float>{4, 4, 4}));
  EXPECT_EQ(last_pool(Variable(x), mask).value().to_vector<float>(), (std::vector<float>{4, 4, 4}));
  for (const int32_t bad : {-1, 2}) {
    const Tensor y = gather_time(Variable(x), ids({bad}, {1}).to(kGpu)).value();
    for (const float value : y.to_vector<float>()) EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_EQ(mean_pool(Variable(Tensor::zeros({1, 0, 2}, DType::f32, kGpu)), {}, true)
                .value()
                .to_vector<float>(),
            (std::vector<float>{0, 0}));
}

// Some operations choose their kernels again in backward, which anyone may call.
TEST(CudaBackward, TakesTheKernelsThatForwardTook) {
  const Variable x(Tensor::full({2}, 1, DType::f32, kGpu), true);
  KernelChoice found = KernelChoice::automatic;
  Variable y;
  {
    const UseKernels use(KernelChoice::plain, kGpu);
    y = record("observed", x.value(), {x}, [&found](Gradients& gradients) {
      found = kernel_choice();
      gradients.add(0, gradients.output());
    });
  }
  backward({y}, {x.value()});
  EXPECT_EQ(found, KernelChoice::plain);
  EXPECT_EQ(kernel_choice(), KernelChoice::automatic);
}

}  // namespace
}  // namespace linnet
