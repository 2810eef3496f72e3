// The functions that mixers call besides their primitives, on the device as on the CPU.
#include "attention/common/lrpe.h"
#include "attention/cosformer/proportions.h"
#include "attention/lavo/local_weight.h"
#include "attention/linformer/position_table.h"
#include "tests/attention/made_mixer.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;

TEST(CudaCosformer, ProportionsAreThoseOfTheCpu) {
  const Tensor positions = test::ids({0, 1, 6, 2, 9, 700, 3, 4}, {2, 4});
  const Tensor expected = position_proportions(positions, 3, 7, true);
  const Tensor got = position_proportions(positions.to(kGpu), 3, 7, true);
  EXPECT_EQ(got.device(), kGpu);
  EXPECT_EQ(got.shape(), Shape({2, 4, 3}));
  EXPECT_TRUE(test::same_bits(got.to(Device{}), expected.to(DType::f32)));
}

TEST(CudaCosformer, PositionsBeyondTheLengthAreNaN) {
  const Tensor positions = test::ids({6, 7, 8}, {1, 3});
  EXPECT_THROW(position_proportions(positions, 1, 7, false), UsageError);
  const std::vector<float> got =
      position_proportions(positions.to(kGpu), 1, 7, false).to_vector<float>();
  EXPECT_FLOAT_EQ(got[0], 6.0f / 7);
  EXPECT_TRUE(std::isnan(got[1]) && std::isnan(got[2]));
}

// As on the CPU, with what `training` says.
void expect_leapformer_trains(const char* training, Form form) {
  MixerOptions options;
  options.form = form;
  options.width = 12;
  options.heads = 2;
  MixerContext context;
  context.training = true;
  context.key_mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 0, 1, 1}, {2, 5});
  // y and the gradients of q, k and v, on the host.
  const auto results = [&](DType rounded, DType dtype, Device device) {
    const test::MadeMixer mixer("leapformer", concat("{hidden: 3, ", training, "}"), options, dtype,
                                device);
    MixerContext here = context;
    here.key_mask = here.source_mask = context.key_mask.to(device);
    const auto given = [&](const char* name) {
      return test::random_tensor({2, 5, 2, 6}, name).to(rounded).to(dtype).to(device);
    };
    const Variable q(given("q"), true), k(given("k"), true), v(given("v"), true);
    const Variable y = mixer.mix(q, k, v, here).y;
    backward({y}, {given("dy")});
    return std::vector<Tensor>{y.value().to(Device{}), q.grad().to(Device{}), k.grad().to(Device{}),
                               v.grad().to(Device{})};
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto expected = results(dtype, DType::f64, {}), got = results(dtype, dtype, kGpu);
    test::expect_close_in(dtype, got, expected, 3e-6, [&] { return results(dtype, dtype, {}); });
  }
}

TEST(CudaLeapformer, TrainsBySoftmaxAsOnTheCpu) {
  expect_leapformer_trains("training: softmax", Form::causal);
}

TEST(CudaLeapformer, TrainsByExpectedAttentionAsOnTheCpu) {
  expect_leapformer_trains("training: expected, wait: 1, read: 2", Form::cross);
}

TEST(CudaLrpe, RotatesAsOnTheCpuWithItsGradients) {
  const Tensor positions = test::ids({0, 1, 700, 3, 4, 5, 6, 70000}, {2, 4});
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 1, 1, 0, 1, 1, 0, 1}, {2, 4});
  // y and the gradients of x and the frequencies, on the host.
  const auto results = [&](DType rounded, DType dtype, Device device) {
    const auto given = [&](const char* name, const Shape& shape) {
      return test::random_tensor(shape, name).to(rounded).to(dtype).to(device);
    };
    const Shape shape{2, 4, 3, 7};
    const Tensor frequencies = test::random_tensor({3}, "frequencies").to(DType::f32);
    const Variable x(given("x", shape), true);
    const Variable rates(frequencies.to(dtype == DType::f64 ? DType::f64 : DType::f32).to(device),
                         true);
    const Variable y = learned_rotary(x, positions.to(device), rates, mask.to(device));
    backward({y}, {given("dy", shape)});
    return std::vector<Tensor>{y.value().to(Device{}), x.grad().to(Device{}),
                               rates.grad().to(Device{})};
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto expected = results(dtype, DType::f64, {}), got = results(dtype, dtype, kGpu);
    test::expect_close_in(dtype, got, expected, 3e-6, [&] { return results(dtype, dtype, {}); });
  }
}

TEST(CudaLavo, AnEmptyMemoryLeavesTheWindowWhole) {
  const Tensor tokens = Tensor::from(std::vector<int64_t>{0, 0, 3, 1, 0, 2}, {2, 3});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor local = Tensor::zeros({2, 3, 2, 5}, dtype);
    const Tensor got = local_weight(tokens.to(kGpu), local.to(kGpu));
    EXPECT_EQ(got.device(), kGpu);
    EXPECT_TRUE(test::same_bits(got.to(Device{}), local_weight(tokens, local)));
    EXPECT_EQ(got.to_vector<float>()[0], 1.0f);
    EXPECT_EQ(got.to_vector<float>()[29], 0.5f);
  }
}

TEST(CudaLinformer, TableOfPositionsIsThatOfTheCpuWithItsGradient) {
  for (const int64_t G : {1, 3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor weight = test::random_tensor({G, 5, 7}, "weight", dtype);
      const Tensor seed = test::random_tensor({7, 15}, "seed", DType::f32);
      const Variable host(weight, true), device(weight.to(kGpu), true);
      const Variable expected = position_table(host, 3), got = position_table(device, 3);
      backward({expected}, {seed});
      backward({got}, {seed.to(kGpu)});
      EXPECT_TRUE(test::same_bits(got.value().to(Device{}), expected.value()));
      EXPECT_TRUE(test::same_bits(device.grad().to(Device{}), host.grad()));
    }
  }
}

}  // namespace
}  // namespace linnet
