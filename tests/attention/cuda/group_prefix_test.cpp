// Linear attention over groups on the CUDA device against the CPU's double precision: result, state
// and every gradient.
#include "attention/primitives/group_prefix/group_prefix.h"

#include "tests/attention/token_setting.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::random_tensor;
using test::TokenSetting;

constexpr int64_t kHeads = 2, kKeys = 3;

struct Setting {
  TokenSetting tokens;
  bool whole, mean;
  int64_t values = 35;  // V
  int64_t group = 4;
  std::vector<int64_t> documents = {};  // their lengths in every row; empty: as `tokens` has them

  std::string label() const {
    return concat(tokens.label(), ", whole ", whole, ", mean ", mean, ", groups of ", group, ", ",
                  documents.size(), " documents");
  }
  BlockAttentionContext context() const {
    BlockAttentionContext context = tokens.context();
    if (documents.empty()) return context;
    std::vector<int32_t> segments, positions;
    for (int64_t b = 0; b < tokens.B; ++b) {
      for (size_t document = 0; document < documents.size(); ++document) {
        for (int64_t t = 0; t < documents[document]; ++t) {
          segments.push_back(static_cast<int32_t>(document));
          positions.push_back(static_cast<int32_t>(t) + (document == 0 ? tokens.start : 0));
        }
      }
    }
    context.segments = Tensor::from(segments, {tokens.B, tokens.T});
    context.positions = Tensor::from(positions, {tokens.B, tokens.T});
    return context;
  }
};

// y and the sums, then the gradients of all inputs, on the host.
std::vector<Tensor> results(const Setting& at, DType rounded, DType dtype, Device device) {
  const TokenSetting& s = at.tokens;
  const BlockAttentionContext on = test::on_device(at.context(), device);
  const GroupPrefixContext context{
      {at.group, at.whole, at.mean, 0.3}, on.key_mask, on.segments, on.positions};
  const Tensor mask = s.context().key_mask;
  const auto leaf = [&](int64_t width, const char* name) {
    const Tensor x = test::poisoned(random_tensor({s.B, s.T, kHeads, width}, name), mask);
    return Variable(x.to(rounded).to(dtype).to(device), true);
  };
  const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
  GroupPrefixState state;
  std::vector<Variable> in{leaf(kKeys, "q"), leaf(kKeys, "k"), leaf(at.values, "v")};
  if (s.P > 0 && !at.whole) {
    for (const char* name : {"completed", "all"}) {
      const Tensor x = random_tensor({s.B, kHeads, kKeys, at.values}, name);
      in.emplace_back(x.to(sums).to(device), true);
    }
    state = {in[3], in[4]};
  }
  const GroupPrefixResult found = group_prefix(in[0], in[1], in[2], context, state);
  EXPECT_EQ(found.y.value().device(), device);
  EXPECT_EQ(found.y.dtype(), dtype);
  std::vector<Variable> outputs{found.y};
  std::vector<Tensor> seeds{
      test::poisoned(random_tensor(found.y.shape(), "dy"), mask).to(rounded).to(dtype).to(device)};
  if (!at.whole) {
    for (const Variable& x : {found.state.completed, found.state.all}) {
      outputs.push_back(x);
      seeds.push_back(random_tensor(x.shape(), "dstate").to(sums).to(device));
    }
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

TEST(CudaGroupPrefix, IsThatOfTheCpu) {
  for (const TokenSetting& tokens : test::token_settings()) expect_equal({tokens, false, false});
  expect_equal({{2, 0, 4, false, false, 8}, false, false});
  expect_equal({{2, 23, 4, true, true, 6}, false, true});
  expect_equal({{2, 23, 0, true, true, 0}, true, false});
}

// Time is cut into four parts of 38 tokens, or five of 32: documents begin with a part, end with
// one, lie inside one, and reach over several; so do groups.
TEST(CudaGroupPrefix, PartsOfTimeJoinToTheWhole) {
  const std::vector<std::vector<int64_t>> rows = {
      {}, {38, 38, 74}, {20, 7, 100, 23}, {37, 2, 1, 110}, {149, 1}};
  for (const std::vector<int64_t>& documents : rows) {
    for (const int64_t group : {4, 50}) {
      expect_equal({{2, 150, 4, false, true, 6}, false, group == 4, 6, group, documents});
    }
    expect_equal({{2, 150, 0, false, true, 0}, true, false, 6, 4, documents});
  }
  expect_equal({{1, 160, 4, false, false, 6}, false, false, 6, 4, {}});
}

// Values that are wider than what a warp keeps in shared memory.
TEST(CudaGroupPrefix, WideValuesStayInGlobalMemory) {
  expect_equal({{1, 7, 4, false, true, 6}, false, false, 2052});
}

TEST(CudaGroupPrefix, SameBitsInEveryRun) {
  const Setting at{{2, 150, 4, true, true, 8}, false, false, 6};
  const std::vector<Tensor> once = results(at, DType::f32, DType::f32, test::kGpu);
  const std::vector<Tensor> again = results(at, DType::f32, DType::f32, test::kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

}  // namespace
}  // namespace linnet
