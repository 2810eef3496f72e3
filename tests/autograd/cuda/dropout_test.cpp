// Dropout on the device draws the masks of the CPU.
#include "autograd/dropout.h"

#include "tests/autograd/op_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::same_bits;
using Variables = std::vector<Variable>;

DropoutSpec spec_on(Device device, double probability) {
  DropoutSpec spec;
  spec.probability = probability;
  spec.key = RandomKey{11, 5, 0}.at("ffn.dropout");
  spec.place.examples = Tensor::from(std::vector<int64_t>{7, int64_t{1} << 23}, {2}, device);
  spec.place.time_offset = 40;
  return spec;
}

TEST(CudaDropout, DrawsTheMasksOfTheCpu) {
  for (const int64_t channels : {1, 4, 67, 512}) {
    for (const double p : {0.05, 0.5, 0.999}) {
      const Tensor ones = Tensor::full({2, 9, channels}, 1);
      EXPECT_TRUE(same_bits(dropout(Variable(ones.to(kGpu)), spec_on(kGpu, p)).value().to(Device{}),
                            dropout(Variable(ones), spec_on({}, p)).value()));
    }
  }
}

TEST(CudaDropout, AgreesWithDouble) {
  for (const double p : {0.0, 0.3}) {
    EXPECT_TRUE(test::precisions_agree(
        [p](const Variables& v) {
          const DropoutSpec spec = spec_on(v[0].value().device(), p);
          return Variables{residual_dropout(v[0], v[1], spec), dropout(v[1], spec)};
        },
        {random_tensor({2, 5, 13}, "x"), random_tensor({2, 5, 13}, "branch")}, 4, kGpu));
  }
}

// Rows that are read 16 bytes at a time, and those that are not.
TEST(CudaDropout, AddsInBf16AsTheCpuDoes) {
  for (const int64_t channels : {8, 20, 264, 520}) {
    const Tensor x = random_tensor({2, 5, channels}, "x").to(DType::bf16);
    const Tensor base = random_tensor({2, 5, channels}, "base").to(DType::bf16);
    const auto on = [&](Device device) {
      return residual_dropout(Variable(base.to(device)), Variable(x.to(device)),
                              spec_on(device, 0.3))
          .value()
          .to(Device{});
    };
    EXPECT_CLOSE(on(kGpu), on(Device{}), 0x1p-8);
  }
}

TEST(CudaDropout, ReadsTheStepFromTheDevice) {
  const Tensor ones = Tensor::full({2, 3, 20}, 1);
  const Tensor step = Tensor::from(std::vector<int64_t>{9}, {1}, kGpu);
  DropoutSpec spec = spec_on(kGpu, 0.5), host = spec_on({}, 0.5);
  spec.key.device_step = static_cast<const uint64_t*>(step.raw());
  spec.key = spec.key.at("place inside");
  host.key = host.key.at("place inside");
  for (const int64_t now : {9, 10}) {
    host.key.step = static_cast<uint64_t>(now);
    step.copy_from(Tensor::from(std::vector<int64_t>{now}, {1}));
    EXPECT_TRUE(same_bits(dropout(Variable(ones.to(kGpu)), spec).value().to(Device{}),
                          dropout(Variable(ones), host).value()));
  }
}

TEST(CudaDropout, RefusesExamplesThatDoNotFit) {
  DropoutSpec spec = spec_on({}, 0.5);
  const Variable x(Tensor::zeros({2, 3, 4}, DType::f32, kGpu));
  EXPECT_THROW(dropout(x, spec), Error);  // in host memory
  spec.place.examples = {};
  EXPECT_THROW(dropout(x, spec), Error);
}

}  // namespace
}  // namespace linnet
