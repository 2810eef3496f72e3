// Functions that EVA and Transformer-LS share, on the CUDA device against the CPU.
#include "attention/common/joint/block_bias.h"
#include "attention/common/joint/joint_softmax.h"
#include "attention/common/joint/overlapping_chunks.h"
#include "attention/common/joint/packed_chunks.h"
#include "attention/common/token_slices.h"
#include "autograd/layout.h"
#include "tests/attention/packed_documents.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

constexpr int64_t B = 2, T = 19, H = 3, K = 5;

Tensor holes() {
  const Tensor mask = Tensor::full({B, T}, 1, DType::u8);
  for (const int64_t token : {2, 4, 5, 6, 7, 18, 30}) mask.data<uint8_t>()[token] = 0;
  return mask;
}

Tensor documents() {
  const Tensor segments = Tensor::zeros({B, T}, DType::i32);
  for (int64_t t = 0; t < T; ++t) {
    segments.data<int32_t>()[t] = t < 5 ? 0 : t < 6 ? 1 : 2;
    segments.data<int32_t>()[T + t] = t < 11 ? 0 : 1;
  }
  return segments;
}

// y and gradients of everything that moves rows, in one dtype, of numbers that `rounded` holds.
std::vector<Tensor> moved(DType rounded, DType dtype, Device device) {
  const auto given = [&](const Shape& shape, const std::string& name) {
    return test::random_tensor(shape, name).to(rounded).to(dtype).to(device);
  };
  const Variable x(given({B, T, H, K}, "x"), true);
  const PackedChunks packed = packed_chunks(documents().to(device), 4);
  std::vector<Variable> all{tokens_of(x, 3, 10), chunk_rows(x, 4), transpose(x, 1, 2),
                            packed_rows(x, packed)};
  std::vector<Tensor> seeds;
  for (size_t i = 0; i < all.size(); ++i) {
    seeds.push_back(given(all[i].shape(), std::to_string(i)));
  }
  backward(all, seeds);
  std::vector<Tensor> out{x.grad()};
  for (const Variable& y : all) out.push_back(y.value());
  const Tensor mask = holes().to(device);
  const ChunkMasks whole = chunk_masks(mask, B, T, 4, 2, device);
  const ChunkMasks plain = chunk_masks({}, B, T, 4, 2, device);
  const ChunkMasks of_packed = packed_masks(mask, packed, 2);
  for (const Tensor& each :
       {whole.tokens, whole.chunks, plain.tokens, of_packed.tokens, of_packed.chunks, packed.tokens,
        packed.places, packed.documents, packed.earlier}) {
    out.push_back(each);
  }
  EXPECT_FALSE(plain.chunks.defined());
  for (const auto kind : {KeyLists::Kind::all, KeyLists::Kind::block, KeyLists::Kind::back,
                          KeyLists::Kind::completed}) {
    KeyLists rule;
    rule.kind = kind;
    rule.size = 4;
    rule.before = 2;
    rule.rank = kind == KeyLists::Kind::completed ? 2 : 1;
    rule.first = 5;
    rule.offset = kind == KeyLists::Kind::block || kind == KeyLists::Kind::back ? 3 : 0;
    rule.lists = T;
    rule.length = 7;
    rule.keys = T + 2;
    out.push_back(key_lists(rule, device));
    if (kind != KeyLists::Kind::all) out.push_back(packed_lists(rule, packed));
  }
  for (Tensor& each : out) each = each.to(Device{});
  return out;
}

TEST(CudaJoint, RowsAndListsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = moved(dtype, DType::f64, Device{});
    test::expect_close_in(dtype, moved(dtype, dtype, test::kGpu), expected, 2e-6,
                          [&] { return moved(dtype, dtype, Device{}); });
  }
}

// Rows of chunks that overlap by less and by more than their length, their gradients, their masks.
std::vector<Tensor> overlapped(DType dtype, Device device) {
  const auto given = [&](const Shape& shape, const std::string& name) {
    return test::random_tensor(shape, name).to(dtype).to(device);
  };
  const Variable x(given({B, T, H, K}, "x"), true);
  const std::vector<Variable> all{overlapping_chunk_rows(x, 4, 3), overlapping_chunk_rows(x, 2, 5)};
  backward(all, std::vector<Tensor>{given(all[0].shape(), "0"), given(all[1].shape(), "1")});
  std::vector<Tensor> out{x.grad(), all[0].value(), all[1].value()};
  const Tensor mask = holes().to(device);
  const ChunkMasks masked = chunk_masks(mask, B, T, 2, 2, device, 1);
  const ChunkMasks whole = chunk_masks({}, B, T, 4, 1, device, 3);
  EXPECT_FALSE(whole.chunks.defined());
  for (const Tensor& each : {masked.tokens, masked.chunks, whole.tokens}) out.push_back(each);
  for (Tensor& each : out) each = each.to(Device{});
  return out;
}

TEST(CudaJoint, OverlappingChunksAreThoseOfTheCpu) {
  test::expect_close_in(DType::f32, overlapped(DType::f32, test::kGpu),
                        overlapped(DType::f64, Device{}), 2e-6,
                        [] { return overlapped(DType::f32, Device{}); });
}

// Parts without keys, in the first, in the second, in both; they hold NaN.
std::vector<Tensor> joined(DType dtype, Device device) {
  const auto leaf = [&](const Tensor& x) { return Variable(x.to(dtype).to(device), true); };
  const Tensor a = test::random_tensor({B, T, H}, "la"), b = test::random_tensor({B, T, H}, "lb");
  const double none = -std::numeric_limits<double>::infinity();
  a.data<double>()[1] = a.data<double>()[2] = b.data<double>()[2] = b.data<double>()[3] = none;
  const Tensor y_a = test::random_tensor({B, T, H, K}, "a"),
               y_b = test::random_tensor({B, T, H, K}, "b");
  std::fill_n(y_a.data<double>() + K, 2 * K, std::nan(""));
  std::fill_n(y_b.data<double>() + 2 * K, 2 * K, std::nan(""));
  const ListedAttentionResult one{leaf(y_a), leaf(a)}, two{leaf(y_b), leaf(b)};
  const auto [y, sums] = joint_softmax(one, two);
  const auto seed = [&](const Shape& shape) {
    return test::random_tensor(shape, "seed").to(dtype).to(device);
  };
  backward({y, sums}, {seed(y.shape()), seed(sums.shape())});
  std::vector<Tensor> out{y.value(),    one.y.grad(),           one.log_sum_exp.grad(),
                          two.y.grad(), two.log_sum_exp.grad(), sums.value()};
  for (Tensor& each : out) each = each.to(Device{});
  const Tensor found = out.back().to(DType::f64);
  EXPECT_EQ(found.data<double>()[2], none);
  found.data<double>()[2] = 0;
  out.back() = found;
  EXPECT_EQ(out[0].to_vector<double>()[static_cast<size_t>(2 * K)], 0);
  return out;
}

TEST(CudaJoint, TwoPartsOfASoftmaxAreThoseOfTheCpu) {
  const std::vector<Tensor> expected = joined(DType::f64, Device{});
  const std::vector<Tensor> got = joined(DType::f32, test::kGpu);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 2e-6);
  }
}

// A bias by distance and its gradient, of a row from token 5 on and of packed documents.
std::vector<Tensor> biased(DType dtype, Device device) {
  KeyLists rule;
  rule.kind = KeyLists::Kind::block;
  rule.size = 4;
  rule.before = 2;
  rule.first = 5;
  rule.length = 7;
  const int64_t count = block_distances(rule).count;
  const Variable values(test::random_tensor({count, H}, "values").to(dtype).to(device), true);
  const PackedChunks packed = packed_chunks(documents().to(device), 4);
  std::vector<Variable> all{block_bias(values, rule, T, {}),
                            block_bias(values, rule, T, packed.documents)};
  std::vector<Tensor> seeds;
  for (const Variable& y : all) {
    seeds.push_back(test::random_tensor(y.shape(), "d").to(dtype).to(device));
  }
  backward(all, seeds);
  return {all[0].value().to(Device{}), all[1].value().to(Device{}), values.grad().to(Device{})};
}

TEST(CudaJoint, BiasesByDistanceAreThoseOfTheCpu) {
  const std::vector<Tensor> expected = biased(DType::f64, Device{});
  const std::vector<Tensor> got = biased(DType::f32, test::kGpu);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(got[i], expected[i], 2e-6);
  }
}

TEST(CudaJoint, PackedDocumentsAreSeparate) {
  for (const auto& [mechanism, parameters] :
       {std::pair{"eva", "{window: 6, chunk: 3, overlap: true, distance_bias: true}"},
        {"longshort", "{window: 5, chunk: 3, rank: 2}"}}) {
    test::expect_packed_documents_are_separate(mechanism, parameters, DType::f32, test::kGpu, 1e-5);
  }
}

}  // namespace
}  // namespace linnet
