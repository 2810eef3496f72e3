// Sampled collisions on the CUDA device: codes equal to the CPU's, results and gradients against
// its double precision with the same codes.
#include "attention/yoso/collisions.h"

#include "tests/attention/token_setting.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

constexpr int64_t kRows = 2, kHeads = 2, kKeys = 35, kValues = 37, kBits = 2, kHashes = 3;

Tensor masked_tokens(int64_t tokens) {
  const Tensor mask = Tensor::full({kRows, tokens}, 1, DType::u8);
  for (int64_t i = 2; i < mask.elements(); i += 5) mask.data<uint8_t>()[i] = 0;
  return mask;
}

Tensor planes() {
  return random_tensor({kHeads, kHashes * kBits, kKeys}, "planes").to(DType::f32);
}

// Vectors with NaN behind the mask.
Tensor vectors(int64_t tokens, int64_t width, const char* name, DType rounded) {
  const Tensor all = random_tensor({kRows, tokens, kHeads, width}, name);
  return (tokens > 0 ? test::poisoned(all, masked_tokens(tokens)) : all).to(rounded);
}

Tensor codes(int64_t tokens, const char* name, DType dtype, Device device) {
  return hash_codes(vectors(tokens, kKeys, name, dtype).to(device), planes().to(device),
                    masked_tokens(tokens).to(device), kBits);
}

TEST(CudaCollisions, CodesAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(
        test::same_bits(codes(23, "q", dtype, kGpu).to(Device{}), codes(23, "q", dtype, Device{})));
  }
}

// y and the gradients of q, k and v, on the host; the queries have T tokens and the keys S.
std::vector<Tensor> results(int64_t T, int64_t S, bool documents, DType rounded, DType dtype,
                            Device device) {
  CollisionContext at;
  at.query_codes = codes(T, "q", rounded, Device{}).to(device);
  at.key_codes = codes(S, "k", rounded, Device{}).to(device);
  at.slope = 0.7;
  if (documents) {
    at.segments = Tensor::empty({kRows, T}, DType::i32);
    for (int64_t i = 0; i < kRows * T; ++i) {
      at.segments.data<int32_t>()[i] = i % T < 9 ? 3 : i % T < 10 ? 1 : 2;
    }
    at.segments = at.segments.to(device);
  }
  const auto leaf = [&](int64_t tokens, int64_t width, const char* name) {
    return Variable(vectors(tokens, width, name, rounded).to(dtype).to(device), true);
  };
  const std::vector<Variable> in{leaf(T, kKeys, "q"), leaf(S, kKeys, "k"), leaf(S, kValues, "v")};
  const Variable y = sampled_collisions(in[0], in[1], in[2], at);
  EXPECT_EQ(y.dtype(), dtype);
  backward({y}, {vectors(T, kValues, "dy", rounded).to(dtype).to(device)});
  std::vector<Tensor> out{y.value().to(Device{})};
  for (const Variable& x : in) out.push_back(x.grad().to(Device{}));
  return out;
}

TEST(CudaCollisions, AreThoseOfTheCpu) {
  struct Setting {
    int64_t T, S;
    bool documents;
  };
  for (const Setting& at : {Setting{23, 23, false}, Setting{23, 23, true}, Setting{7, 40, false},
                            Setting{0, 5, false}, Setting{5, 0, false}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto run = [&](DType computed, Device device) {
        return results(at.T, at.S, at.documents, dtype, computed, device);
      };
      const std::vector<Tensor> expected = run(DType::f64, Device{}), got = run(dtype, kGpu);
      test::expect_close_in(
          dtype, got, expected, 2e-6, [&] { return run(dtype, Device{}); },
          concat("T ", at.T, ", S ", at.S, ", documents ", at.documents, ", ", name_of(dtype)));
    }
  }
}

}  // namespace
}  // namespace linnet
