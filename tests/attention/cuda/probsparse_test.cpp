// The functions of ProbSparse attention on the CUDA device against the CPU.
#include "attention/common/query_rows.h"
#include "attention/probsparse/active_queries.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t B = 3, T = 37, H = 2, K = 5, kFactor = 2;

// Padding at the end of row 0, inside row 1, everywhere in row 2.
Tensor holes() {
  const Tensor mask = Tensor::full({B, T}, 1, DType::u8);
  for (int64_t t = 0; t < T; ++t) {
    if (t >= 6 && (t < T - 6)) continue;
    mask.data<uint8_t>()[(t < 6 ? 1 : 0) * T + t] = 0;
  }
  std::fill_n(mask.data<uint8_t>() + 2 * T, T, uint8_t{0});
  return mask;
}

TEST(CudaProbsparse, ActiveQueriesAreThoseOfTheCpu) {
  const Tensor q = test::random_tensor({B, T, H, K}, "q", DType::f32),
               k = test::random_tensor({B, T, H, K}, "k", DType::f32);
  RandomKey key = RandomKey{5, 9, 0}.at("samples");
  const Tensor draws = probsparse_draws(key, T, T, kFactor);
  // The step that the device holds counts.
  const Tensor step = Tensor::from(std::vector<int64_t>{9}, {1}, test::kGpu);
  RandomKey other = key;
  other.step = 4;
  other.device_step = static_cast<const uint64_t*>(step.raw());
  for (const Tensor& mask : {Tensor(), holes()}) {
    const std::vector<int32_t> expected =
        active_queries(q, k, {mask, mask}, {}, key, kFactor).to_vector<int32_t>();
    const Tensor there = mask.defined() ? mask.to(test::kGpu) : mask;
    const auto found = [&](const Tensor& drawn, const RandomKey& from) {
      return active_queries(q.to(test::kGpu), k.to(test::kGpu), {there, there}, drawn, from,
                            kFactor)
          .to_vector<int32_t>();
    };
    EXPECT_EQ(found({}, other), expected);
    EXPECT_EQ(found(draws.to(test::kGpu), {}), expected);
  }
}

TEST(CudaProbsparse, ActiveQueriesOfAnotherSequenceAreThoseOfTheCpu) {
  constexpr int64_t S = 11;
  const Tensor q = test::random_tensor({B, T, H, K}, "q", DType::f32),
               k = test::random_tensor({B, S, H, K}, "k", DType::f32);
  const Tensor keys = Tensor::full({B, S}, 1, DType::u8);
  std::fill_n(keys.data<uint8_t>() + 3, 4, uint8_t{0});
  std::fill_n(keys.data<uint8_t>() + S, S, uint8_t{0});  // row 1 has no key
  const Tensor queries = holes(), draws = probsparse_draws({}, T, S, kFactor);
  const std::vector<int32_t> expected =
      active_queries(q, k, {queries, keys}, draws, {}, kFactor).to_vector<int32_t>();
  EXPECT_EQ(active_queries(q.to(test::kGpu), k.to(test::kGpu),
                           {queries.to(test::kGpu), keys.to(test::kGpu)}, draws.to(test::kGpu), {},
                           kFactor)
                .to_vector<int32_t>(),
            expected);
}

// y and both gradients of rows taken, put among others, and what that gives.
std::vector<Tensor> rows_and_gradients(DType dtype, Device device) {
  const int64_t u = 4;
  const Tensor active =
      Tensor::from(std::vector<int32_t>{36, 0, 7,  11, 5, 4, 3, -1, 8,  9,  10, 11,
                                        30, 2, -1, -1, 0, 1, 2, 3,  -1, -1, -1, -1},
                   {B, H, u});
  const auto leaf = [&](const Shape& shape, const char* name) {
    return Variable(test::random_tensor(shape, name).to(dtype).to(device), true);
  };
  const Variable x = leaf({B, T, H, K}, "x"), others = leaf({B, H * K}, "others");
  const ChosenQueries chosen = chosen_queries(active.to(device), T);
  const Variable rows = take_queries(x, chosen);
  const Variable y = put_queries(rows, others, chosen, holes().to(device));
  backward({y}, {test::random_tensor(y.shape(), "dy").to(dtype).to(device)});
  std::vector<Tensor> out{rows.value(), y.value(), x.grad(), others.grad()};
  for (Tensor& each : out) each = each.to(Device{});
  return out;
}

TEST(CudaProbsparse, RowsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = rows_and_gradients(dtype, Device{});
    const std::vector<Tensor> got = rows_and_gradients(dtype, test::kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_CLOSE(got[i], expected[i], 1e-7);
    }
  }
}

}  // namespace
}  // namespace linnet
