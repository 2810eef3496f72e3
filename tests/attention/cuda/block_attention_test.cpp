// Block attention on the device against the CPU's in double: every pattern and option, results and
// all gradients, f32 and bf16; carried tokens and masks.
#include "attention/primitives/block_attention/block_attention.h"

#include <tuple>

#include "tests/attention/cuda/block_attention_problem.h"

namespace linnet {
namespace {

using namespace test::block_attention_problem;
using test::ids;
using test::kGpu;
using test::random_tensor;

// `single`: the largest relative error in f32.
void expect_as_on_the_cpu(const Problem& p, const std::string& what, double single = 3e-6) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = results(p, dtype, DType::f64, Device{});
    const std::vector<Tensor> got = results(p, dtype, dtype, kGpu);
    test::expect_close_in(
        dtype, got, expected, single, [&] { return plain_results(p); },
        concat(what, ", ", name_of(dtype)));
  }
}

TEST(CudaBlockAttention, EveryPattern) {
  for (const bool causal : {false, true}) {
    for (const int pattern : {0, 1, 2}) {
      Problem p(Sizes{});
      p.context.options.causal = causal;
      if (pattern == 1) p.band(causal, 4, 2);
      if (pattern == 2) p.blocks(causal, 5);
      const std::string what =
          "pattern " + std::to_string(pattern) + (causal ? ", causal" : ", noncausal");
      expect_as_on_the_cpu(p, what);
      p.cut(0);
      p.mask();
      expect_as_on_the_cpu(p, what + ", documents, masks");
    }
  }
}

TEST(CudaBlockAttention, WeightsThatAreNotNormalised) {
  const char* const kNames[] = {"softmax",   "relu",  "relu squared", "laplace",
                                "collision", "exact", "identity",     "exponential"};
  for (const BlockWeights weights :
       {BlockWeights::relu, BlockWeights::relu_squared, BlockWeights::laplace,
        BlockWeights::collision, BlockWeights::identity, BlockWeights::exponential}) {
    for (const bool causal : {false, true}) {
      Problem p({.P = causal ? 6 : 0});
      p.blocks(causal, 9);
      p.context.options.weights = weights;
      p.add_bias(p.s.H, 8, 8);
      p.context.options.exponent = 3;
      // Near -1 and 1 the slope of arccos multiplies what rounding did to the cosine: up to 5.3e-6
      // was seen without fused multiply-adds.
      const double single = weights == BlockWeights::collision ? 2e-5 : 3e-6;
      const std::string what =
          std::string(kNames[static_cast<size_t>(weights)]) + (causal ? ", causal" : ", noncausal");
      expect_as_on_the_cpu(p, what, single);
      p.cut(causal ? 4 : 0);
      p.mask();
      p.drop(0.3);
      expect_as_on_the_cpu(p, what + ", documents, masks, dropout", single);
    }
  }
}

TEST(CudaBlockAttention, CollisionsWithTheirOwnDerivative) {
  Problem p({});
  p.context.options.weights = BlockWeights::collision_exact;
  p.context.options.exponent = 3;
  // Cosines stay where the derivative is small.
  p.context.options.scale = 0.5 / static_cast<double>(p.s.K);
  expect_as_on_the_cpu(p, "collision, exact");
  p.mask();
  expect_as_on_the_cpu(p, "collision, exact, masks");
}

TEST(CudaBlockAttention, CarriedKeysWithBiasAndDropout) {
  for (const int pattern : {0, 1, 2}) {
    for (const bool shared_bias : {false, true}) {
      Problem p({.P = 6});
      p.context.options.causal = true;
      if (pattern == 1) p.band(true, 8);
      if (pattern == 2) p.blocks(true, 4);
      p.add_bias(shared_bias ? 1 : p.s.H, 43, 0);
      p.cut(4);  // two of the six carried slots are empty
      p.mask();
      p.drop(0.3);
      p.context.place.time_offset = 9;
      expect_as_on_the_cpu(p, "pattern " + std::to_string(pattern));
    }
  }
}

TEST(CudaBlockAttention, EachRowHasItsTime) {
  Problem p({.B = 2, .P = 6});
  p.band(true, 8);
  p.drop(0.3);
  p.context.place.time_offset = 6;
  p.context.times = Tensor::from(std::vector<int64_t>{9, 40}, {2});
  expect_as_on_the_cpu(p, "times");
}

TEST(CudaBlockAttention, BiasOnBothSides) {
  Problem p(Sizes{});
  p.band(false, 6, 3);
  p.add_bias(p.s.H, 7, 3);
  expect_as_on_the_cpu(p, "band");
  p.cut(0);
  p.mask();
  expect_as_on_the_cpu(p, "band, documents, masks");
}

TEST(CudaBlockAttention, CrossAttention) {
  Problem p({.Tq = 5, .Tk = 41});
  p.context.cross = true;
  expect_as_on_the_cpu(p, "cross");
  p.mask();
  p.drop(0.2);
  expect_as_on_the_cpu(p, "cross, masks, dropout");
}

TEST(CudaBlockAttention, DecodesOneToken) {
  Problem p({.Tq = 1, .Tk = 1, .P = 40});
  p.context.options.causal = true;
  p.context.place.time_offset = 38;
  expect_as_on_the_cpu(p, "one token");
}

TEST(CudaBlockAttention, NothingToAttendTo) {
  Problem hidden({.B = 1, .Tq = 3, .Tk = 3, .G = 4});
  hidden.context.key_mask = Tensor::zeros({1, 3}, DType::u8);
  expect_as_on_the_cpu(hidden, "all keys masked");
  hidden.dy.fill(std::nan(""));
  expect_as_on_the_cpu(hidden, "all keys masked, dy of NaN");
  Problem empty({.B = 2, .Tq = 0, .Tk = 0, .P = 3});
  empty.context.options.causal = true;
  expect_as_on_the_cpu(empty, "no tokens");
}

// Wide heads, and more queries than one warp's share of a tile.
TEST(CudaBlockAttention, WideHeads) {
  Problem p({.B = 1, .Tq = 9, .Tk = 9, .H = 2, .K = 65, .V = 130});
  p.context.options.causal = true;
  expect_as_on_the_cpu(p, "wide");
}

TEST(CudaBlockAttention, DropsWhatTheCpuDrops) {
  Problem p({.B = 1, .H = 2, .G = 1, .V = 37});
  p.context.options.causal = true;
  p.drop(0.5);
  // Values of one channel each show which weights are there.
  for (int64_t i = 0; i < 37 * 37; ++i) p.v.data<double>()[i] = i % 38 == 0 ? 1 : 0;
  const std::vector<double> expected =
                                results(p, DType::f32, DType::f32, {})[0].to_vector<double>(),
                            got = results(p, DType::f32, DType::f32, kGpu)[0].to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i] == 0, expected[i] == 0) << i;
}

// A captured graph is replayed with another step: the kernels find it in device memory.
TEST(CudaBlockAttention, DropsByTheStepOnTheDevice) {
  Problem p({.B = 1});
  p.context.options.causal = true;
  p.drop(0.4);
  p.context.options.dropout_key.step = 8;
  const std::vector<Tensor> expected = results(p, DType::f32, DType::f64, Device{});
  const Tensor step = Tensor::full({}, 8, DType::i64, kGpu);
  p.context.options.dropout_key.step = 0;
  p.context.options.dropout_key.device_step = static_cast<const uint64_t*>(step.raw());
  const std::vector<Tensor> got = results(p, DType::f32, DType::f32, kGpu);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_CLOSE(got[i], expected[i], 3e-6);
}

TEST(CudaBlockAttention, SameBitsInEveryRun) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem p({.P = 6});
    p.band(true, 8);
    p.add_bias(1, 8, 0);
    p.cut(6);
    p.drop(0.3);
    const std::vector<Tensor> once = results(p, dtype, dtype, kGpu);
    const std::vector<Tensor> again = results(p, dtype, dtype, kGpu);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i]));
  }
}

TEST(CudaBlockAttention, RefusesWhatItCannotDo) {
  const Variable wide(Tensor::zeros({1, 4, 2, 3}, DType::f64, kGpu));
  EXPECT_NE(test::message_of<Error>([&] {
              block_attention({wide, wide, wide, {}, {}, {}}, {});
            }).find("f32 and bf16"),
            std::string::npos);
  const Variable x(Tensor::zeros({1, 4, 2, 3}, DType::f32, kGpu));
  const Variable host(Tensor::zeros({1, 4, 2, 3}));
  EXPECT_THROW(block_attention({x, host, x, {}, {}, {}}, {}), Error);
  BlockAttentionContext context;
  context.key_mask = Tensor::zeros({1, 3}, DType::u8, kGpu);
  EXPECT_THROW(block_attention({x, x, x, {}, {}, {}}, context), Error);
  context = {};
  const Variable bias(Tensor::zeros({2, 6}, DType::f32, kGpu));
  context.bias_origin = 3;
  EXPECT_NE(test::message_of<Error>([&] {
              block_attention({x, x, x, {}, {}, bias}, context);
            }).find("covers distances -3 to 2"),
            std::string::npos);
  const Variable broad(Tensor::zeros({1, 1, 1, 8192}, DType::f32, kGpu));
  EXPECT_NE(test::message_of<Error>([&] {
              block_attention({broad, broad, broad, {}, {}, {}}, {});
            }).find("kernel block_attend needs 262656 bytes of shared memory per block"),
            std::string::npos);
}

TEST(CudaBlockAttention, ACallOnTheCpuRefusesTensorsOnTheDevice) {
  const Variable x(Tensor::zeros({2, 4, 2, 3}));
  const std::tuple<Tensor BlockAttentionContext::*, Shape, DType> kTensors[] = {
      {&BlockAttentionContext::query_mask, {2, 4}, DType::u8},
      {&BlockAttentionContext::key_mask, {2, 4}, DType::u8},
      {&BlockAttentionContext::past_mask, {2, 4}, DType::u8},
      {&BlockAttentionContext::segments, {2, 4}, DType::i32},
      {&BlockAttentionContext::positions, {2, 4}, DType::i32},
      {&BlockAttentionContext::times, {2}, DType::i64}};
  const auto attend = [&](const BlockAttentionContext& context) {
    return block_attention({x, x, x, x, x, {}}, context);
  };
  for (const auto& [member, shape, dtype] : kTensors) {
    BlockAttentionContext context;
    context.*member = Tensor::zeros(shape, dtype);
    EXPECT_NO_THROW(attend(context)) << shape;
    context.*member = Tensor::zeros(shape, dtype, kGpu);
    EXPECT_THROW(attend(context), Error) << shape;
  }
  BlockAttentionContext context;
  context.place.examples = Tensor::zeros({2}, DType::i64, kGpu);
  EXPECT_THROW(attend(context), Error);
}

TEST(CudaCarry, TokensAndMasksAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t T : {0, 1, 5, 70}) {
      for (const int64_t P : {0, 4}) {
        for (const int64_t keep : {-1, 0, 3, 8}) {
          const Tensor past = random_tensor({2, P, 2, 3}, "past", dtype);
          const Tensor now = random_tensor({2, T, 2, 3}, "now", dtype);
          std::vector<int32_t> segments;
          std::vector<uint8_t> valid, past_valid(static_cast<size_t>(2 * P), 1);
          for (int64_t i = 0; i < 2 * T; ++i) {
            segments.push_back(i < T ? 1 : static_cast<int32_t>(2 + (i - T) / 3 % 2));
            valid.push_back(i % 4 == 1 ? 0 : 1);
          }
          for (size_t i = 2; i < past_valid.size(); i += 3) past_valid[i] = 0;
          const auto run = [&](Device device) {
            const Variable from_past(past.to(device), true), current(now.to(device), true);
            const Variable out = carry_tokens(P > 0 ? from_past : Variable(), current, keep);
            backward({out}, {random_tensor(out.shape(), "dout", dtype).to(device)});
            std::vector<Tensor> all{out.value(), current.grad()};
            if (P > 0) all.push_back(from_past.grad());
            const Tensor key_mask = Tensor::from(valid, {2, T}).to(device);
            const Tensor past_mask = Tensor::from(past_valid, {2, P}).to(device);
            all.push_back(carry_mask(past_mask, key_mask, ids(segments, {2, T}).to(device), 2, P, T,
                                     keep, device));
            all.push_back(carry_mask({}, {}, {}, 2, P, T, keep, device));
            for (Tensor& x : all) x = x.to(Device{});
            return all;
          };
          const std::vector<Tensor> expected = run(Device{}), got = run(kGpu);
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(test::same_bits(got[i], expected[i])) << T << " " << P << " " << keep;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace linnet
