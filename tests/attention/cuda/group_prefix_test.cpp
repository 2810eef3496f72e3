// Linear attention over whole groups on the CUDA device against the CPU's double precision: result,
// state and every gradient.
#include "attention/flash/group_prefix.h"

#include <cmath>

#include "core/random.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t kRows = 2, kLength = 23, kKeys = 3, kValues = 70;

struct Setting {
  bool whole, mean, state, cut;
};

Tensor numbers(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{3, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

// Documents of 10 and 13 tokens, masked tokens with NaN, positions that begin inside a group.
struct Problem {
  Tensor q = numbers({kRows, kLength, kKeys}, "q"), k = numbers({kRows, kLength, kKeys}, "k");
  Tensor v = numbers({kRows, kLength, kValues}, "v");
  Tensor mask, segments, positions = Tensor::empty({kRows, kLength}, DType::i32);

  explicit Problem(const Setting& at) {
    const int64_t start = at.state ? 6 : 0;
    if (at.cut) {
      mask = Tensor::full({kRows, kLength}, 1, DType::u8);
      segments = Tensor::zeros({kRows, kLength}, DType::i32);
    }
    for (int64_t i = 0; i < kRows * kLength; ++i) {
      const int64_t t = i % kLength;
      const bool second = at.cut && t >= 10;
      positions.data<int32_t>()[i] = static_cast<int32_t>(second ? t - 10 : start + t);
      if (!at.cut) continue;
      segments.data<int32_t>()[i] = second ? 1 : 0;
      if (t % 5 != 3) continue;
      mask.data<uint8_t>()[i] = 0;
      for (const auto& [x, width] : {std::pair{q, kKeys}, {k, kKeys}, {v, kValues}}) {
        std::fill_n(x.data<double>() + i * width, width, std::nan(""));
      }
    }
  }
};

std::vector<Tensor> results(const Setting& at, DType rounded, DType dtype, Device device) {
  const Problem p(at);
  const auto leaf = [&](const Tensor& x) {
    return Variable(x.to(rounded).to(dtype).to(device), true);
  };
  const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
  GroupPrefixContext context;
  context.options = {4, at.whole, at.mean, 0.3};
  if (at.cut) {
    context.mask = p.mask.to(device);
    context.segments = p.segments.to(device);
  }
  context.positions = p.positions.to(device);
  GroupPrefixState state;
  std::vector<Variable> in{leaf(p.q), leaf(p.k), leaf(p.v)};
  if (at.state) {
    for (const char* name : {"completed", "all"}) {
      in.emplace_back(numbers({kRows, kKeys, kValues}, name).to(sums).to(device), true);
    }
    state = {in[3], in[4]};
  }
  const GroupPrefixResult found = group_prefix(in[0], in[1], in[2], context, state);
  EXPECT_EQ(found.y.dtype(), dtype);
  std::vector<Tensor> seeds{numbers(found.y.shape(), "dy").to(rounded).to(dtype).to(device)};
  std::vector<Variable> outputs{found.y};
  if (!at.whole) {
    for (const Variable& x : {found.state.completed, found.state.all}) {
      outputs.push_back(x);
      seeds.push_back(numbers(x.shape(), "dstate").to(sums).to(device));
    }
  }
  backward(outputs, seeds);
  std::vector<Tensor> out;
  for (const Variable& x : outputs) out.push_back(x.value().to(Device{}));
  for (const Variable& x : in) out.push_back(x.grad().to(Device{}));
  return out;
}

TEST(CudaGroupPrefix, IsThatOfTheCpu) {
  for (const Setting& at : {Setting{false, false, false, false}, Setting{false, true, true, false},
                            Setting{false, false, true, true}, Setting{true, false, false, true}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::vector<Tensor> expected = results(at, dtype, DType::f64, Device{});
      const std::vector<Tensor> got = results(at, dtype, dtype, test::kGpu);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " whole " + std::to_string(at.whole) +
                     " state " + std::to_string(at.state) + " cut " + std::to_string(at.cut) +
                     ", result " + std::to_string(i));
        EXPECT_CLOSE(got[i], expected[i], test::tolerance_of(dtype));
      }
    }
  }
}

}  // namespace
}  // namespace linnet
