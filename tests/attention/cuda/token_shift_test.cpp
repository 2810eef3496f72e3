// Token shift on the CUDA device against the CPU: result, state and every gradient.
#include "attention/flash/token_shift.h"

#include <cmath>

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 3, kLength = 7, kWidth = 5;

Tensor numbers(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

// y, the gradients of x and of the carried token, on the host in double.
std::vector<std::vector<double>> results(DType dtype, bool loaded, Device device) {
  const auto here = [&](const Tensor& x) { return x.to(DType::bf16).to(dtype).to(device); };
  const Tensor values = numbers({kRows, kLength, kWidth}, "x");
  MixerContext context;
  MixerState state;
  const Variable past(here(numbers({kRows, 1, kWidth}, "past")), true);
  if (loaded) {
    const Tensor mask = Tensor::full({kRows, kLength}, 1, DType::u8);
    const Tensor segments = Tensor::zeros({kRows, kLength}, DType::i32);
    for (const int64_t hole : {2, 9, 13}) {
      mask.data<uint8_t>()[hole] = 0;
      for (int64_t c = 0; c < kWidth; ++c) values.data<double>()[hole * kWidth + c] = std::nan("");
    }
    for (int64_t t = 4; t < kLength; ++t) segments.data<int32_t>()[kLength + t] = 1;
    context.key_mask = mask.to(device);
    context.segments = segments.to(device);
    const Tensor valid = Tensor::full({kRows, 1}, 1, DType::i64);
    valid.data<int64_t>()[2] = 0;
    state = {{"shift", past}, {"shift_valid", Variable(valid.to(device))}};
  }
  const Variable x(here(values), true);
  const ShiftedTokens shifted = shift_tokens(x, context, state, true);
  backward({shifted.x}, {here(numbers(values.shape(), "dy"))});
  std::vector<std::vector<double>> out;
  Tensor y = shifted.x.value().to(Device{}).to(DType::f64);
  // Padded tokens keep NaN in the half that is their own.
  for (int64_t i = 0; i < y.elements(); ++i) {
    if (std::isnan(y.data<double>()[i])) y.data<double>()[i] = 1e3;
  }
  out.push_back(y.to_vector<double>());
  out.push_back(x.grad().to(Device{}).to(DType::f64).to_vector<double>());
  if (loaded) out.push_back(past.grad().to(Device{}).to(DType::f64).to_vector<double>());
  out.push_back(
      shifted.state.at("shift_valid").value().to(Device{}).to(DType::f64).to_vector<double>());
  return out;
}

TEST(CudaTokenShift, IsThatOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool loaded : {false, true}) {
      EXPECT_EQ(results(dtype, loaded, test::kGpu), results(DType::f64, loaded, Device{}))
          << name_of(dtype) << loaded;
    }
  }
}

}  // namespace
}  // namespace linnet
