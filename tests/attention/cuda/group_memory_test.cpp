// Group memory on the device against the CPU's in double: results and all gradients, f32 and bf16.
#include "attention/primitives/group_memory.h"

#include "tests/attention/group_memory_case.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 4, kKeyHeads = 2, kK = 5, kV = 35;

// y, the memory, then the gradients of all inputs, on the host.
std::vector<Tensor> results(const TokenSetting& s, DType rounded, DType dtype, Device device) {
  const BlockAttentionContext host = s.context();
  const auto make = [&](const Shape& shape, const char* name, const Tensor& mask) {
    return test::poisoned(random_tensor(shape, name), mask).to(rounded).to(dtype).to(device);
  };
  const auto sums = [&](const Tensor& x) {
    return x.to(dtype == DType::f64 ? DType::f64 : DType::f32).to(device);
  };
  std::vector<Variable> in{Variable(make({s.B, s.T, kHeads, kK}, "q", host.query_mask), true),
                           Variable(make({s.B, s.T, kKeyHeads, kK}, "k", host.key_mask), true),
                           Variable(make({s.B, s.T, kKeyHeads, kV}, "v", host.key_mask), true),
                           {},
                           {},
                           {}};
  const Shape memory{s.B, kKeyHeads, kK, kV};
  if (s.P > 0) {
    in[3] = Variable(make({s.B, s.P, kKeyHeads, kK}, "past_k", host.past_mask), true);
    in[4] = Variable(make({s.B, s.P, kKeyHeads, kV}, "past_v", host.past_mask), true);
    in[5] = Variable(sums(random_tensor(memory, "memory")), true);
  }
  const GroupMemoryResult found = group_memory({in[0], in[1], in[2], in[3], in[4], {}}, in[5],
                                               test::on_device(host, device), {5, 0.7});
  EXPECT_EQ(found.y.value().device(), device);
  EXPECT_EQ(found.y.dtype(), dtype);
  backward({found.y, found.memory}, {make({s.B, s.T, kHeads, kV}, "dy", host.query_mask),
                                     sums(random_tensor(memory, "dmemory"))});
  std::vector<Tensor> out{found.y.value().to(Device{}), found.memory.value().to(Device{})};
  for (const Variable& x : in) {
    if (x.defined()) out.push_back(x.grad().to(Device{}));
  }
  return out;
}

TEST(CudaGroupMemory, IsThatOfTheCpu) {
  std::vector<TokenSetting> settings = test::token_settings();
  settings.push_back({2, 0, 4, false, false, 8});
  for (const TokenSetting& setting : settings) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::vector<Tensor> expected = results(setting, dtype, DType::f64, Device{});
      const std::vector<Tensor> got = results(setting, dtype, dtype, kGpu);
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(concat(setting.label(), ", ", name_of(dtype), ", result ", i));
        EXPECT_CLOSE(got[i], expected[i], dtype == DType::f32 ? 3e-6 : 1e-2);
      }
    }
  }
}

TEST(CudaGroupMemory, SameBitsInEveryRun) {
  const TokenSetting setting{2, 23, 4, true, true, 8};
  const std::vector<Tensor> once = results(setting, DType::f32, DType::f32, kGpu);
  const std::vector<Tensor> again = results(setting, DType::f32, DType::f32, kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

}  // namespace
}  // namespace linnet
