// Diagonal recurrences on the CUDA device against the CPU's double precision: result, state and
// every gradient.
#include "attention/primitives/diagonal_scan/diagonal_scan.h"

#include "core/error.h"
#include "core/kernel_choice.h"
#include "tests/attention/token_setting.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

struct Setting {
  TokenSetting tokens;
  bool bilinear = false, later = false, shared = true, skip = true;
  int64_t H = 3, M = 3, G = 2;

  std::string label() const {
    return concat(tokens.label(), ", T ", tokens.T, ", bilinear ", bilinear, ", later ", later,
                  ", M ", M);
  }
};

// y and the state, then the gradients of all inputs, on the host.
std::vector<Tensor> results(const Setting& at, DType rounded, DType dtype, Device device) {
  const TokenSetting& s = at.tokens;
  const BlockAttentionContext on = test::on_device(s.context(), device);
  const DiagonalScanContext context{at.bilinear ? Discretization::bilinear : Discretization::zoh,
                                    at.later, on.key_mask, on.segments};
  const Tensor mask = s.context().key_mask;
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const int64_t rows = at.shared ? 1 : at.H;
  std::vector<Variable> in{Variable(
      test::poisoned(random_tensor({s.B, s.T, at.H}, "u"), mask).to(rounded).to(dtype).to(device),
      true)};
  const auto leaf = [&](const Shape& shape, const char* name, double scale) {
    in.emplace_back(
        random_tensor(shape, name, DType::f64, scale).to(DType::f32).to(wide).to(device), true);
    return in.back();
  };
  DiagonalScanVariables inputs;
  inputs.u = in[0];
  inputs.log_step = leaf({at.H}, "log_step", 0.5);
  inputs.log_decay = leaf({rows, at.M}, "log_decay", 0.5);
  inputs.frequency = leaf({rows, at.M}, "frequency", 2);
  inputs.c = leaf({at.G, at.H, at.M, 2}, "c", 1);
  if (at.skip) inputs.d = leaf({at.G, at.H}, "d", 1);
  if (s.P > 0 && !at.later) inputs.state = leaf({s.B, at.H, at.M, 2}, "state", 1);
  const DiagonalScanResult found = diagonal_scan(inputs, context);
  EXPECT_EQ(found.y.value().device(), device);
  EXPECT_EQ(found.y.dtype(), dtype);
  std::vector<Variable> outputs{found.y};
  std::vector<Tensor> seeds{
      test::poisoned(random_tensor(found.y.shape(), "dy"), mask).to(rounded).to(dtype).to(device)};
  if (!at.later) {
    outputs.push_back(found.state);
    seeds.push_back(random_tensor(found.state.shape(), "dstate").to(wide).to(device));
  }
  backward(outputs, seeds);
  std::vector<Tensor> out;
  for (const Variable& x : outputs) out.push_back(x.value().to(Device{}));
  for (const Variable& x : in) out.push_back(x.grad().to(Device{}));
  return out;
}

void expect_equal(const Setting& at) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = results(at, dtype, DType::f64, Device{});
    const std::vector<Tensor> got = results(at, dtype, dtype, test::kGpu);
    test::expect_close_in(
        dtype, got, expected, 2e-6, [&] { return results(at, dtype, dtype, Device{}); },
        concat(at.label(), ", ", name_of(dtype)));
  }
}

TEST(CudaDiagonalScan, IsThatOfTheCpu) {
  for (const TokenSetting& tokens : test::token_settings()) expect_equal({tokens});
  for (const TokenSetting& tokens :
       {TokenSetting{2, 70, 4, true, true, 0}, {1, 64, 0, false, false, 0}}) {
    expect_equal({tokens, true, false, false});
    expect_equal({tokens, false, true, false, false});
  }
  expect_equal({{2, 0, 4, false, false, 0}});
}

// More modes than a warp has lanes.
TEST(CudaDiagonalScan, ManyModes) {
  expect_equal({{1, 35, 4, false, true, 0}, false, false, false, true, 2, 37, 1});
}

TEST(CudaDiagonalScan, SameBitsInEveryRun) {
  const Setting at{{2, 70, 4, true, true, 8}};
  const std::vector<Tensor> once = results(at, DType::f32, DType::f32, test::kGpu);
  const std::vector<Tensor> again = results(at, DType::f32, DType::f32, test::kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

TEST(CudaDiagonalScan, DoublePrecisionIsRefused) {
  EXPECT_NE(test::message_of<Error>([] {
              results({{1, 4, 0, false, false, 0}}, DType::f64, DType::f64, test::kGpu);
            }).find("f64 is computed on the CPU only"),
            std::string::npos);
}

TEST(CudaDiagonalScan, IsRefusedWhereTensorCoresAreDemanded) {
  const UseKernels demand(KernelChoice::tensor_cores, test::kGpu);
  EXPECT_NE(test::message_of<UsageError>([] {
              results({{1, 40, 0, false, false, 0}}, DType::bf16, DType::bf16, test::kGpu);
            }).find("diagonal scan"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
