// Forward of block attention on tensor cores with 32 queries a warp, as long calls have them, gives
// what it gives with 16.
#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/block_attention/cuda/fast.h"
#include "tests/attention/cuda/block_attention_problem.h"

namespace linnet {
namespace {

using namespace test::block_attention_problem;
using test::kGpu;
namespace fast = cuda::block_attention_fast;

struct Result {
  Tensor y, log_sum_exp;
};

Result forward_of(const Problem& p, int row_tiles) {
  const auto on_device = [](const Tensor& x) {
    return x.defined() ? Variable(x.to(DType::bf16).to(kGpu)) : Variable();
  };
  const BlockAttentionContext context = context_on(p, kGpu);
  const BlockAttentionTensors in = binding::block_attention_tensors(
      {on_device(p.q), on_device(p.k), on_device(p.v), on_device(p.past_k), on_device(p.past_v),
       on_device(p.bias)},
      context, "test");
  const Result result{Tensor::empty({p.s.B, p.s.Tq, p.s.H, p.s.V}, DType::bf16, kGpu),
                      Tensor::empty({p.s.B, p.s.Tq, p.s.H}, DType::f32, kGpu)};
  fast::forward(fast::call_of(in, context), fast::writes(result.y),
                cuda::pointer<float>(result.log_sum_exp), row_tiles);
  return {result.y.to(Device{}), result.log_sum_exp.to(Device{})};
}

// Tiles of keys begin with the first one that a block sees, so sums of a band have another order.
void expect_as_with_one(const Problem& p, const std::string& what) {
  SCOPED_TRACE(what);
  const Result two = forward_of(p, 2), again = forward_of(p, 2), one = forward_of(p, 1);
  EXPECT_TRUE(test::same_bits(two.y, again.y));
  EXPECT_TRUE(test::close_in_bf16(two.y, results(p, DType::bf16, DType::f64, Device{})[0],
                                  plain_results(p)[0], 0));
  const bool same_order = p.context.options.pattern == BlockPattern::full && p.s.P == 0 &&
                          !p.context.segments.defined();
  EXPECT_TRUE(!same_order || test::same_bits(two.y, one.y));
  const std::vector<double> sums = two.log_sum_exp.to_vector<double>(),
                            of_one = one.log_sum_exp.to_vector<double>();
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_TRUE(sums[i] == of_one[i] || std::abs(sums[i] - of_one[i]) <= 1e-5) << i;
  }
}

Sizes tokens(int64_t T, int64_t K = 40, int64_t V = 40, int64_t P = 0) {
  return {.B = 1, .Tq = T, .Tk = T, .H = 2, .G = 1, .K = K, .V = V, .P = P};
}

TEST(CudaBlockAttentionRows, EveryPattern) {
  for (const int pattern : {0, 1, 2}) {
    for (const bool causal : {false, true}) {
      Problem p(tokens(pattern == 0 ? 129 : 210));
      p.context.options.causal = causal;
      if (pattern == 1) p.band(causal, 30, 7);
      if (pattern == 2) p.blocks(causal, 24);
      p.context.options.weights = causal ? BlockWeights::softmax : BlockWeights::relu_squared;
      const std::string what = "pattern " + std::to_string(pattern);
      expect_as_with_one(p, what);
      p.cut(0);
      p.mask();
      expect_as_with_one(p, what + ", documents, masks");
    }
  }
}

// Distances to 128 queries are two arrays of 128.
TEST(CudaBlockAttentionRows, WidthsWithBias) {
  for (const int64_t K : {40, 64}) {
    Problem p(tokens(150, K, K - 8));
    p.context.options.causal = K == 64;
    p.context.options.scale = 0.2;
    p.add_bias(2, 149, 149);
    p.mask();
    expect_as_with_one(p, "keys of " + std::to_string(K));
  }
}

TEST(CudaBlockAttentionRows, CarriedKeysAndDropout) {
  for (const int64_t offset : {0, 7}) {
    Problem p(tokens(140, 40, 8, 5));
    p.band(offset == 0, 40, 4);
    p.drop(0.3);
    p.context.place.time_offset = offset;
    p.add_bias(1, 40, 4);
    p.cut(4);
    p.mask();
    expect_as_with_one(p, "from time " + std::to_string(offset));
  }
}

TEST(CudaBlockAttentionRows, LongCallsHaveTwoTilesAWarp) {
  EXPECT_EQ(fast::row_tiles_of(528 * 64, 1, 64), 1);
  EXPECT_EQ(fast::row_tiles_of(528 * 64 + 1, 1, 64), 2);
  EXPECT_EQ(fast::row_tiles_of(65, 265, 33), 2);
  EXPECT_EQ(fast::row_tiles_of(65, 264, 33), 1);
  EXPECT_EQ(fast::row_tiles_of(64, 1 << 20, 64), 1) << "half of each block would be empty";
  EXPECT_EQ(fast::row_tiles_of(1 << 20, 8, 32), 1);
  EXPECT_EQ(fast::row_tiles_of(1 << 20, 8, 128), 1);
}

}  // namespace
}  // namespace linnet
