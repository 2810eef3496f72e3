// Depthwise convolutions on the device against the CPU's in double, f32 and bf16.
#include "attention/primitives/depthwise_conv/depthwise_conv.h"

#include "tests/attention/token_setting.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 2, kV = 5;

// y and the gradients of x, past and taps, on the host.
std::vector<Tensor> results(const TokenSetting& s, const Shape& taps, int64_t before, DType rounded,
                            DType dtype, Device device) {
  const BlockAttentionContext host = s.context();
  const auto make = [&](const Shape& shape, const char* name, const Tensor& mask) {
    return test::poisoned(random_tensor(shape, name), mask).to(rounded).to(dtype).to(device);
  };
  const Variable x(make({s.B, s.T, kHeads, kV}, "x", host.key_mask), true);
  const Variable filters(make(taps, "taps", {}), true);
  Variable past;
  if (s.P > 0) past = Variable(make({s.B, s.P, kHeads, kV}, "past", host.past_mask), true);
  const Variable y = depthwise_conv(x, past, filters, before, test::on_device(host, device));
  EXPECT_EQ(y.value().device(), device);
  EXPECT_EQ(y.dtype(), dtype);
  backward({y}, {make(y.shape(), "dy", host.query_mask)});
  std::vector<Tensor> out{y.value(), x.grad(), filters.grad()};
  if (past.defined()) out.push_back(past.grad());
  for (Tensor& t : out) t = t.to(Device{});
  return out;
}

TEST(CudaDepthwiseConv, IsThatOfTheCpu) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 0, 4, false, false, 8});
  settings.push_back({2, 150, 0, true, true, 0});
  const std::pair<Shape, int64_t> filters[] = {{{kHeads, 5}, 4}, {{kHeads, kV, 5}, 2}};
  for (const TokenSetting& setting : settings) {
    for (const auto& [taps, before] : filters) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto expected = results(setting, taps, before, dtype, DType::f64, Device{});
        const auto got = results(setting, taps, before, dtype, dtype, kGpu);
        test::expect_close_in(
            dtype, got, expected, 3e-6,
            [&] { return results(setting, taps, before, dtype, dtype, Device{}); },
            concat(setting.label(), ", ", name_of(dtype)));
      }
    }
  }
}

TEST(CudaDepthwiseConv, ACallOnTheCpuRefusesTensorsOnTheDevice) {
  const Variable x(Tensor::zeros({2, 4, kHeads, kV})), taps(Tensor::zeros({kHeads, 3}));
  BlockAttentionContext context;
  context.key_mask = Tensor::zeros({2, 4}, DType::u8);
  EXPECT_NO_THROW(depthwise_conv(x, {}, taps, 2, context));
  context.key_mask = context.key_mask.to(kGpu);
  EXPECT_THROW(depthwise_conv(x, {}, taps, 2, context), Error);
}

}  // namespace
}  // namespace linnet
