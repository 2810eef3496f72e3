// Block attention on tensor cores gives what the CPU computes in double, for every pattern and
// option that it covers, at the edges of tiles, for views that are read in place and for extreme
// inputs; and it is taken where it should be.
#include "attention/primitives/block_attention/cuda/fast.h"

#include <cstdlib>

#include "attention/primitives/block_attention/binding.h"
#include "attention/primitives/block_attention/cuda/path.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "tests/attention/cuda/block_attention_problem.h"
#include "tests/attention/cuda/fused_projection.h"

namespace linnet {
namespace {

using namespace test::block_attention_problem;
using test::kGpu;
using test::part_of;
using test::part_view;
using test::random_tensor;

// Both in bf16; what tensor cores do not cover is refused.
void expect_as_on_the_cpu(const Problem& p, const std::string& what) {
  const std::vector<Tensor> expected = results(p, DType::bf16, DType::f64, Device{});
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> got = results(p, DType::bf16, DType::bf16, kGpu);
  test::expect_close_in_bf16(got, expected, plain_results(p), what);
}

Sizes tokens(int64_t T, int64_t K = 16, int64_t V = 16, int64_t P = 0) {
  return {.B = 1, .Tq = T, .Tk = T, .H = 2, .G = 1, .K = K, .V = V, .P = P};
}

TEST(CudaBlockAttentionFast, EveryPattern) {
  for (const bool causal : {false, true}) {
    for (const int pattern : {0, 1, 2}) {
      Problem p(tokens(pattern == 0 ? 65 : 100));
      p.context.options.causal = causal;
      if (pattern == 1) p.band(causal, 30, 7);
      if (pattern == 2) p.blocks(causal, 24);
      p.context.options.weights = causal ? BlockWeights::softmax : BlockWeights::relu_squared;
      const std::string what =
          "pattern " + std::to_string(pattern) + (causal ? ", causal" : ", noncausal");
      expect_as_on_the_cpu(p, what);
      p.context.options.weights = causal ? BlockWeights::relu_squared : BlockWeights::softmax;
      p.cut(0);
      p.mask();
      expect_as_on_the_cpu(p, what + ", documents, masks");
    }
  }
}

TEST(CudaBlockAttentionFast, EdgesOfTilesAndWidths) {
  for (const int64_t T : {16, 64, 129}) {
    Problem p(tokens(T, 8, 16));
    p.context.options.causal = true;
    expect_as_on_the_cpu(p, "tokens " + std::to_string(T));
  }
  for (const int64_t K : {24, 64, 128}) {
    Problem p(tokens(70, K, K == 24 ? 32 : K - 8));
    p.context.options.causal = true;
    p.context.options.scale = 0.2;
    p.add_bias(2, 69, 0);
    p.mask();
    // The widest heads too fit into the shared memory of small GPUs, 99 KiB per block.
    setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
    expect_as_on_the_cpu(p, "keys of " + std::to_string(K));
    unsetenv("LINNET_EMULATED_CAPABILITY");
  }
}

TEST(CudaBlockAttentionFast, CarriedKeysWithBias) {
  for (const int pattern : {0, 1, 2}) {
    for (const BlockWeights weights : {BlockWeights::softmax, BlockWeights::relu_squared}) {
      Problem p(tokens(66, 16, 8, 6));
      p.context.options.causal = true;
      p.context.options.weights = weights;
      if (pattern == 1) p.band(true, 8);
      if (pattern == 2) p.blocks(true, 4);
      p.add_bias(pattern == 1 ? 1 : 2, 71, 0);
      p.cut(4);  // two of the six carried slots are empty
      p.mask();
      p.context.place.time_offset = 9;
      expect_as_on_the_cpu(p, "pattern " + std::to_string(pattern));
    }
  }
}

// By the same draws as the CPU and the plain kernels, wherever time and carried keys put the fours
// that are drawn together. A band is narrow, so that each draw weighs.
TEST(CudaBlockAttentionFast, DropsWhatTheCpuDrops) {
  for (const int64_t offset : {0, 1, 7, 8}) {
    Problem p(tokens(70, 16, 16, offset < 2 ? 0 : 5));
    p.band(offset != 1, 7, 4);
    p.context.options.weights = offset == 7 ? BlockWeights::relu_squared : BlockWeights::softmax;
    p.drop(0.3);
    p.context.place.time_offset = offset;
    const std::string what = "from time " + std::to_string(offset);
    expect_as_on_the_cpu(p, what);
    p.add_bias(2, 7, 4);
    p.cut(static_cast<int32_t>(std::min<int64_t>(offset, 4)));
    p.mask();
    expect_as_on_the_cpu(p, what + ", bias, documents, masks");
    const auto run = [&](KernelChoice choice) {
      const UseKernels use(choice, kGpu);
      return results(p, DType::bf16, DType::bf16, kGpu);
    };
    const std::vector<Tensor> fast = run(KernelChoice::tensor_cores),
                              again = run(KernelChoice::tensor_cores),
                              plain = run(KernelChoice::plain);
    test::expect_close_in_bf16(plain, results(p, DType::bf16, DType::f64, Device{}),
                               plain_results(p), what + ", plain");
    for (size_t i = 0; i < fast.size(); ++i) EXPECT_TRUE(test::same_bits(fast[i], again[i]));
  }
}

TEST(CudaBlockAttentionFast, DropsAtEveryWidth) {
  for (const int64_t V : {32, 64, 128, 272}) {
    Problem p(tokens(70, V == 32 ? 24 : 64, V));
    p.band(V != 64, 6, 9);
    p.context.options.scale = 0.2;
    p.drop(0.4);
    p.mask();
    expect_as_on_the_cpu(p, "values of " + std::to_string(V));
  }
}

TEST(CudaBlockAttentionFast, DropsInOtherPatternsAndRows) {
  Problem blocks({.B = 2, .Tq = 70, .Tk = 70, .H = 2, .G = 2, .K = 8, .V = 8});
  blocks.blocks(false, 9);
  blocks.drop(0.3);
  blocks.context.place.examples = Tensor::from(std::vector<int64_t>{17, 3}, {2});
  blocks.context.times = Tensor::from(std::vector<int64_t>{6, 1025}, {2});
  expect_as_on_the_cpu(blocks, "blocks");
  blocks.cut(0);
  blocks.context.options.pattern = BlockPattern::full;
  expect_as_on_the_cpu(blocks, "full, documents");
  Problem cross({.B = 2, .Tq = 17, .Tk = 80, .H = 2, .G = 1, .K = 16, .V = 16});
  cross.context.cross = true;
  cross.drop(0.3);
  cross.context.place.time_offset = 3;
  cross.mask();
  expect_as_on_the_cpu(cross, "cross");
  Problem nothing({.B = 1, .Tq = 16, .Tk = 0, .H = 1, .G = 1, .K = 16, .V = 16});
  nothing.context.cross = true;
  nothing.drop(0.3);
  expect_as_on_the_cpu(nothing, "no keys");
}

// Values of one channel each show every draw, also of keys beyond the first tile; a captured graph
// is replayed with another step, which the kernels find in device memory.
TEST(CudaBlockAttentionFast, DropsBitForBitByTheStepOnTheDevice) {
  Problem p(tokens(104, 16, 104));
  p.context.options.causal = true;
  p.drop(0.5);
  p.context.options.dropout_key.step = 8;
  for (int64_t i = 0; i < 104 * 104; ++i) p.v.data<double>()[i] = i % 105 == 0 ? 1 : 0;
  const std::vector<double> expected =
      results(p, DType::bf16, DType::f32, Device{})[0].to_vector<double>();
  const Tensor step = Tensor::full({}, 8, DType::i64, kGpu);
  p.context.options.dropout_key.step = 0;
  p.context.options.dropout_key.device_step = static_cast<const uint64_t*>(step.raw());
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<double> got = results(p, DType::bf16, DType::bf16, kGpu)[0].to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i] == 0, expected[i] == 0) << i;
}

// As in gated units, with one head.
TEST(CudaBlockAttentionFast, WideValuesAreReadTileByTile) {
  for (const BlockWeights weights : {BlockWeights::softmax, BlockWeights::relu_squared}) {
    Problem p(tokens(70, 16, 272));
    p.band(true, 40);
    p.context.options.weights = weights;
    p.add_bias(1, 40, 0);
    p.mask();
    expect_as_on_the_cpu(p, "values of 272");
  }
}

// More tiles of queries than rows of partial sums: blocks loop over several.
TEST(CudaBlockAttentionFast, BiasOnBothSidesAndOverManyTiles) {
  Problem p(tokens(90));
  p.band(false, 70, 3);
  p.add_bias(2, 75, 3);
  p.cut(0);
  expect_as_on_the_cpu(p, "band");
  Problem many({.B = 65, .Tq = 17, .Tk = 17, .H = 2, .G = 2, .K = 8, .V = 8});
  many.band(true, 4);
  many.add_bias(1, 4, 0);
  expect_as_on_the_cpu(many, "many rows");
}

TEST(CudaBlockAttentionFast, CrossAttention) {
  Problem p({.B = 2, .Tq = 17, .Tk = 80, .H = 2, .G = 2, .K = 16, .V = 16});
  p.context.cross = true;
  p.mask();
  expect_as_on_the_cpu(p, "cross");
  Problem nothing({.B = 1, .Tq = 16, .Tk = 0, .H = 1, .G = 1, .K = 16, .V = 16});
  nothing.context.cross = true;
  expect_as_on_the_cpu(nothing, "no keys");
}

// They share tiles with queries and keys that do see each other.
TEST(CudaBlockAttentionFast, QueriesThatSeeNothingTakeNoGradient) {
  constexpr int64_t kTokens = 100, kBlind = 5;
  for (const int64_t V : {16, 136}) {
    Problem p(tokens(kTokens, 16, V));
    p.context.options.causal = true;
    p.add_bias(2, kTokens - 1, 0);
    p.context.key_mask = Tensor::full({1, kTokens}, 1, DType::u8);
    std::fill_n(p.context.key_mask.data<uint8_t>(), kBlind, uint8_t{0});
    std::fill_n(p.dy.data<double>(), kBlind * 2 * V, std::nan(""));
    expect_as_on_the_cpu(p, "values of " + std::to_string(V));
  }
}

TEST(CudaBlockAttentionFast, ExtremeInputsStayFinite) {
  Problem p(tokens(70));
  p.context.options.causal = true;
  p.context.options.scale = 80.0 / 16;
  for (Tensor* x : {&p.q, &p.k}) {
    for (int64_t i = 0; i < x->elements(); ++i) {
      double& value = x->data<double>()[i];
      // Key 1 and query 1 are ones, query 2 of head 1 is their negative.
      value = i / 32 == 1 || value > 0 ? 1 : -1;
    }
  }
  for (int64_t c = 0; c < 16; ++c) p.k.data<double>()[16 + c] = 1;
  for (int64_t c = 0; c < 16; ++c) p.q.data<double>()[5 * 16 + c] = -1;
  expect_as_on_the_cpu(p, "logits of 80 and -80");
  p.q.fill(0);
  expect_as_on_the_cpu(p, "queries of zeros");
  p.context.options.weights = BlockWeights::relu_squared;
  expect_as_on_the_cpu(p, "relu squared of zeros");

  Problem single(tokens(70));
  std::vector<uint8_t> one(70, 0);
  one[37] = 1;
  single.context.key_mask = Tensor::from(one, {1, 70});
  // Its weight is 1 whatever the logit.
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = results(single, DType::bf16, DType::f64, Device{});
  const std::vector<Tensor> got = results(single, DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> plain = results(single, DType::bf16, DType::bf16, Device{});
  for (const size_t i : {0, 3}) {
    EXPECT_TRUE(test::close_in_bf16(got[i], expected[i], plain[i], i)) << i;
  }
  for (const size_t i : {1, 2}) {
    for (const float gradient : got[i].to_vector<float>()) EXPECT_NEAR(gradient, 0, 1e-5);
  }
  single.context.key_mask.fill(0);
  expect_as_on_the_cpu(single, "no valid key");
}

TEST(CudaBlockAttentionFast, RepeatsBitForBitAndLooksAtNothingLater) {
  Problem p(tokens(100));
  p.band(true, 40);
  p.add_bias(1, 40, 0);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto run = [&] { return results(p, DType::bf16, DType::bf16, kGpu); };
  const std::vector<Tensor> once = run(), again = run();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i]));
  p.k.data<double>()[90 * 16] = p.v.data<double>()[90 * 16] = 5;
  const std::vector<float> before = once[0].to_vector<float>(), after = run()[0].to_vector<float>();
  constexpr size_t kEarlier = size_t{90} * 2 * 16;
  for (size_t i = 0; i < kEarlier; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[kEarlier], after[kEarlier]);
}

// A mask is asked once for each tile: those that it leaves whole are copied as without one, between
// others that are not.
TEST(CudaBlockAttentionFast, TilesThatMasksLeaveWhole) {
  constexpr int64_t kTokens = 200, kPadding = 70;
  for (const bool causal : {false, true}) {
    Problem p(tokens(kTokens));
    p.band(causal, 90, 20);
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    const std::vector<Tensor> bare = results(p, DType::bf16, DType::bf16, kGpu);
    p.context.query_mask = Tensor::full({1, kTokens}, 1, DType::u8);
    p.context.key_mask = Tensor::full({1, kTokens}, 1, DType::u8);
    const std::vector<Tensor> all = results(p, DType::bf16, DType::bf16, kGpu);
    for (size_t i = 0; i < bare.size(); ++i) EXPECT_TRUE(test::same_bits(bare[i], all[i])) << i;
    for (Tensor* mask : {&p.context.query_mask, &p.context.key_mask}) {
      std::fill_n(mask->data<uint8_t>() + kTokens - kPadding, kPadding, uint8_t{0});
    }
    for (const auto& [x, width] : {std::pair{&p.q, 32}, {&p.dy, 32}, {&p.k, 16}, {&p.v, 16}}) {
      std::fill_n(x->data<double>() + (kTokens - kPadding) * width, kPadding * width, std::nan(""));
    }
    expect_as_on_the_cpu(p, causal ? "causal" : "noncausal");
  }
}

// One array [B,T,3,H,K] holds q, k and v, another one their gradients: the kernels read and write
// them where they are.
TEST(CudaBlockAttentionFast, ReadsAndWritesFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor dfused = Tensor::empty(fused.shape(), DType::bf16, kGpu);
  BlockAttentionContext context;
  context.options.causal = true;
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) dense.emplace_back(part_of(fused, part).to(kGpu), true);
  const BlockAttentionVariables inputs{dense[0], dense[1], dense[2], {}, {}, {}};
  const Tensor dy = random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected = block_attention(inputs, context);
  backward({expected}, {dy});

  using namespace cuda::block_attention_fast;
  const Tensor y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  const Tensor log_sum_exp = Tensor::empty({B, T, H}, DType::f32, kGpu);
  Call call =
      call_of(binding::block_attention_tensors(inputs, context, "block attention"), context);
  call.q = part_view(fused, 0);
  call.k = part_view(fused, 1);
  call.v = part_view(fused, 2);
  forward(call, writes(y), cuda::pointer<float>(log_sum_exp));
  EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{})));
  cuda::block_attention_fast::backward({call,
                                        reads(y),
                                        reads(dy),
                                        cuda::pointer<const float>(log_sum_exp),
                                        part_view(dfused, 0),
                                        part_view(dfused, 1),
                                        part_view(dfused, 2),
                                        {},
                                        {},
                                        nullptr},
                                       kGpu);
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
    EXPECT_TRUE(test::same_bits(part_of(dfused, part), gradient)) << part;
  }
}

BlockAttentionTensors zeros(int64_t T, int64_t K, int64_t V, DType dtype = DType::bf16) {
  BlockAttentionTensors in;
  in.q = in.k = Tensor::zeros({1, T, 1, K}, dtype, kGpu);
  in.v = Tensor::zeros({1, T, 1, V}, dtype, kGpu);
  return in;
}

TEST(CudaBlockAttentionFast, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto why = [](const BlockAttentionTensors& in, const BlockAttentionContext& context = {}) {
    return cuda::why_plain_block_attention(context, in);
  };
  const BlockAttentionTensors usual = zeros(16, 16, 16);
  EXPECT_EQ(why(usual), "");
  EXPECT_EQ(why(zeros(40, 128, 8)), "");
  EXPECT_EQ(why(zeros(16, 16, 16, DType::f32)), "values of f32");
  EXPECT_EQ(why(zeros(16, 12, 16)), "keys of 12 and values of 16 elements per head");
  EXPECT_EQ(why(zeros(16, 16, 136)), "");
  EXPECT_EQ(why(zeros(16, 136, 16)), "keys of 136 and values of 16 elements per head");
  EXPECT_EQ(why(zeros(15, 16, 16)), "fewer than 16 queries");
  BlockAttentionTensors other = usual;
  other.q = Tensor::zeros({16 * 16 + 1}, DType::bf16, kGpu).slice(1, {1, 16, 1, 16});
  EXPECT_EQ(why(other), "tensors that do not begin on 16 bytes");
  other.q = Tensor::zeros({1, 16, 65535, 8}, DType::bf16, kGpu);
  other.k = other.v = other.q;
  EXPECT_EQ(why(other), "");
  other.q = other.k = other.v = Tensor::zeros({1, 16, 65536, 8}, DType::bf16, kGpu);
  EXPECT_EQ(why(other), "65536 heads");
  BlockAttentionContext context;
  context.options.dropout = 0.1;
  EXPECT_EQ(why(usual, context), "");
  context = {};
  context.options.weights = BlockWeights::relu_squared;
  EXPECT_EQ(why(usual, context), "");
  const std::pair<BlockWeights, const char*> kPlain[] = {
      {BlockWeights::relu, "weights relu"},
      {BlockWeights::laplace, "weights laplace"},
      {BlockWeights::collision, "weights collision"},
      {BlockWeights::collision_exact, "weights collision"},
      {BlockWeights::identity, "weights identity"},
      {BlockWeights::exponential, "weights exponential"}};
  for (const auto& [weights, name] : kPlain) {
    context.options.weights = weights;
    EXPECT_EQ(why(usual, context), name);
  }

  EXPECT_TRUE(cuda::block_attention_is_fast({}, usual));
  EXPECT_FALSE(cuda::block_attention_is_fast(context, usual));
  {
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    EXPECT_EQ(
        test::message_of<UsageError>([&] { cuda::block_attention_is_fast(context, usual); }),
        "block attention: backend tensor_cores was requested, but the kernels on tensor cores "
        "do not cover weights exponential; use backend auto");
    // Decoding token by token is left to the plain kernels.
    EXPECT_FALSE(cuda::block_attention_is_fast({}, zeros(1, 16, 16)));
    const UseKernels plain(KernelChoice::plain, kGpu);
    EXPECT_FALSE(cuda::block_attention_is_fast({}, usual));
  }
}

TEST(CudaBlockAttentionFast, WhatItDoesNotCoverIsSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 19;
  width += 2;
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) cuda::block_attention_is_fast({}, zeros(17, width, width));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string said = concat("do not cover keys of ", width, " and values of ", width);
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace linnet
