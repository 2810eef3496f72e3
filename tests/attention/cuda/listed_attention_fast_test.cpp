// Listed attention on tensor cores gives what the CPU computes in double, at the edges of tiles and
// groups, for views that are read in place and for extreme inputs; and it is taken where it should
// be.
#include "attention/primitives/listed_attention/cuda/fast.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention/primitives/listed_attention/cuda/path.h"
#include "core/cuda/backend.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "tests/attention/cuda/fused_projection.h"
#include "tests/attention/listed_attention_case.h"
#include "tests/attention/made_mixer.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::ListedCase;
using test::ListedSizes;
using test::part_of;
using test::part_view;
using test::random_tensor;

// Both in bf16; what tensor cores do not cover is refused.
void expect_as_on_the_cpu(const ListedCase& p, const std::string& what,
                          KernelChoice choice = KernelChoice::tensor_cores) {
  const std::vector<Tensor> expected = p.results(DType::bf16, DType::f64);
  const UseKernels use(choice, kGpu);
  const std::vector<Tensor> got = p.results(DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> plain = plain_results(p);
  test::drop_infinities(plain[1], expected[1].clone());
  test::drop_infinities(got[1], expected[1]);
  test::expect_close_in_bf16(got, expected, plain, what);
}

ListedSizes sizes(int64_t queries, int64_t keys, int64_t group, int64_t length) {
  return {.B = 1,
          .Tq = queries,
          .Tk = keys,
          .H = 2,
          .G = 1,
          .K = 16,
          .V = 16,
          .length = length,
          .group = group,
          .index_rows = 1,
          .index_heads = 2};
}

TEST(CudaListedAttentionFast, EdgesOfGroupsAndTiles) {
  for (const auto& [queries, group, length] : {std::array<int64_t, 3>{16, 16, 1},
                                               {41, 8, 64},
                                               {70, 20, 65},
                                               {129, 64, 7},
                                               {70, 200, 130},
                                               {150, 129, 20}}) {
    ListedCase p(sizes(queries, 90, group, length));
    const std::string what = "queries " + std::to_string(queries) + " in groups of " +
                             std::to_string(group) + ", places " + std::to_string(length);
    expect_as_on_the_cpu(p, what);
    p.mask();
    expect_as_on_the_cpu(p, what + ", masks");
  }
}

TEST(CudaListedAttentionFast, Widths) {
  for (const int64_t K : {8, 56, 128}) {
    ListedSizes wide = sizes(40, 33, 32, 70);
    wide.K = K;
    wide.V = K == 128 ? 72 : 64;
    ListedCase p(wide);
    p.context.options.scale = 0.2;
    p.mask();
    p.add_bias(1, 2);
    // The widest heads too fit into the shared memory of small GPUs, 99 KiB per block.
    setenv("LINNET_EMULATED_CAPABILITY", "86", 1);
    expect_as_on_the_cpu(p, "keys of " + std::to_string(K));
    unsetenv("LINNET_EMULATED_CAPABILITY");
  }
}

// The last tile is mostly empty; with a gradient of the bias, which is a sum over tiles.
TEST(CudaListedAttentionFast, ValuesOfSeveralTiles) {
  for (const auto& [K, V] : {std::array<int64_t, 2>{16, 136}, {128, 392}}) {
    for (const int64_t index_heads : {1, 2}) {
      ListedSizes wide = sizes(70, 33, 40, 70);
      wide.K = K;
      wide.V = V;
      wide.index_heads = index_heads;
      ListedCase p(wide);
      p.context.options.scale = 0.2;
      const std::string what = "values of " + std::to_string(V);
      expect_as_on_the_cpu(p, what);
      p.mask();
      p.add_bias(1, 2);
      p.drop(0.3);
      expect_as_on_the_cpu(p, what + ", masks, bias, dropout");
    }
  }
}

// By the same draws as the CPU and the plain kernels. Few places hold keys, so that each draw
// weighs.
TEST(CudaListedAttentionFast, DropsWhatTheCpuDrops) {
  for (const auto& [group, K] : {std::array<int64_t, 2>{8, 16}, {40, 72}}) {
    ListedSizes s = sizes(70, 41, group, 70);
    s.K = s.V = K;
    s.index_heads = K == 16 ? 1 : 2;
    ListedCase p(s);
    p.context.options.scale = 0.2;
    for (int64_t i = 0; i < p.context.index.elements(); ++i) {
      if (i % 9 != 2) p.context.index.data<int32_t>()[i] = -1;
    }
    p.drop(0.4);
    const std::string what = "groups of " + std::to_string(group);
    expect_as_on_the_cpu(p, what);
    p.mask();
    p.add_bias(1, 1);
    expect_as_on_the_cpu(p, what + ", masks, bias");
    expect_as_on_the_cpu(p, what + ", masks, bias, plain kernels", KernelChoice::plain);
  }
}

TEST(CudaListedAttentionFast, ListsAndBiasesThatRowsAndHeadsShare) {
  for (const int64_t rows : {1, 2}) {
    for (const int64_t heads : {1, 4}) {
      ListedSizes shared = sizes(37, 41, 16, 35);
      shared.B = 2;
      shared.H = 4;
      shared.G = 2;
      shared.index_rows = rows;
      shared.index_heads = heads;
      ListedCase p(shared);
      p.mask();
      p.add_bias(3 - rows, 5 - heads);
      expect_as_on_the_cpu(
          p, "lists of " + std::to_string(rows) + " rows and " + std::to_string(heads) + " heads");
    }
  }
}

TEST(CudaListedAttentionFast, ExtremeInputsStayFinite) {
  ListedCase p(sizes(40, 70, 20, 66));
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
  for (int64_t list = 0; list < 4; ++list) {
    p.context.index.data<int32_t>()[list * 66 + 65] = 1;
  }
  expect_as_on_the_cpu(p, "logits of 80 and -80");
  p.q.fill(0);
  expect_as_on_the_cpu(p, "queries of zeros");
  std::vector<uint8_t> none(70, 0);
  p.context.key_mask = Tensor::from(none, {1, 70});
  expect_as_on_the_cpu(p, "no valid key");
  p.context.key_mask = {};
  p.context.query_mask = Tensor::from(std::vector<uint8_t>(40, 0), {1, 40});
  expect_as_on_the_cpu(p, "no valid query");
}

TEST(CudaListedAttentionFast, OneKey) {
  ListedCase p(sizes(40, 70, 20, 66));
  p.context.index.fill(37);
  expect_as_on_the_cpu(p, "in every place");
  p.context.index.fill(-1);
  for (int64_t list = 0; list < 4; ++list) p.context.index.data<int32_t>()[list * 66 + 65] = 37;
  // Its weight is 1 whatever the logit.
  p.dlse.fill(0);
  const std::vector<Tensor> expected = p.results(DType::bf16, DType::f64);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> got = p.results(DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> plain = plain_results(p);
  for (const size_t i : {0, 1, 4}) {
    EXPECT_TRUE(test::close_in_bf16(got[i], expected[i], plain[i], i)) << i;
  }
  for (const size_t i : {2, 3}) {
    for (const float gradient : got[i].to_vector<float>()) EXPECT_NEAR(gradient, 0, 1e-5);
  }
}

TEST(CudaListedAttentionFast, EmptyListsAndNoKeys) {
  expect_as_on_the_cpu(ListedCase(sizes(20, 9, 16, 0)), "no place");
  expect_as_on_the_cpu(ListedCase(sizes(20, 0, 16, 5)), "no key");
}

// Their bias excludes every key of a list that others read; the gradient of a log-sum-exp of
// -infinity is NaN as a rule, that of y, which is not read, may be.
TEST(CudaListedAttentionFast, QueriesThatSeeNothingTakeNoGradient) {
  constexpr int64_t kQueries = 40, kLength = 66, kBlind = 5;
  for (const int64_t V : {16, 136}) {
    ListedSizes s = sizes(kQueries, 70, 20, kLength);
    s.V = V;
    ListedCase p(s);
    p.add_bias(1, 2);
    for (int64_t h = 0; h < 2; ++h) {
      double* bias = p.bias.data<double>() + (h * kQueries + kBlind) * kLength;
      std::fill_n(bias, kLength, -std::numeric_limits<double>::infinity());
      p.dlse.data<double>()[kBlind * 2 + h] = std::nan("");
    }
    expect_as_on_the_cpu(p, "one of them");
    std::fill_n(p.dy.data<double>() + kBlind * 2 * V, 2 * V, std::nan(""));
    expect_as_on_the_cpu(p, "dy too");
  }
}

// Without a mask, a bias or an empty place nothing is asked of single pairs; with a mask that
// leaves all, or a bias of zeros, everything is.
TEST(CudaListedAttentionFast, FullListsGiveTheSameBitsEitherWay) {
  ListedCase p(sizes(128, 90, 64, 128));
  int32_t* index = p.context.index.data<int32_t>();
  for (int64_t i = 0; i < p.context.index.elements(); ++i) index[i] = static_cast<int32_t>(i % 89);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> bare = p.results(DType::bf16, DType::bf16, kGpu);
  p.context.query_mask = Tensor::full({1, 128}, 1, DType::u8);
  p.context.key_mask = Tensor::full({1, 90}, 1, DType::u8);
  p.add_bias(1, 1);
  p.bias.fill(0);
  const std::vector<Tensor> asked = p.results(DType::bf16, DType::bf16, kGpu);
  for (size_t i = 0; i < bare.size(); ++i) EXPECT_TRUE(test::same_bits(bare[i], asked[i])) << i;
}

TEST(CudaListedAttentionFast, RepeatsBitForBit) {
  ListedCase p(sizes(100, 30, 32, 70));
  p.add_bias(1, 1);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> once = p.results(DType::bf16, DType::bf16, kGpu);
  const std::vector<Tensor> again = p.results(DType::bf16, DType::bf16, kGpu);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i])) << i;
}

// The kernels cannot refuse it: the queries that would read it become NaN, others do not.
TEST(CudaListedAttentionFast, AnIndexBeyondTheKeysGivesNan) {
  ListedCase p(sizes(48, 30, 16, 70));
  p.context.index.data<int32_t>()[2 * 70 + 69] = 30;  // the last list of head 0
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<float> y = p.results(DType::bf16, DType::bf16, kGpu)[0].to_vector<float>();
  for (int64_t t = 0; t < 48; ++t) {
    EXPECT_EQ(std::isnan(y[t * 32]), t >= 32) << t;
    EXPECT_FALSE(std::isnan(y[t * 32 + 16])) << t;
  }
}

// One array [B,T,3,H,K] holds q, k and v, another one their gradients: the kernels read and write
// them where they are. Work memory holds the shares of one key head at a time.
TEST(CudaListedAttentionFast, ReadsAndWritesFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor dfused = Tensor::empty(fused.shape(), DType::bf16, kGpu);
  ListedSizes s = sizes(T, T, 32, 40);
  s.B = s.G = s.index_rows = 2;
  ListedAttentionContext context = ListedCase(s).context;
  context.index = context.index.to(kGpu);
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) dense.emplace_back(part_of(fused, part).to(kGpu), true);
  const Tensor dy = random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected = listed_attention({dense[0], dense[1], dense[2], {}}, context).y;
  backward({expected}, {dy});

  using namespace cuda::listed_attention_fast;
  const Tensor y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  const Tensor log_sum_exp = Tensor::empty({B, T, H}, DType::f32, kGpu);
  Call call = call_of({dense[0].value(), dense[1].value(), dense[2].value(), Tensor()}, context);
  call.q = part_view(fused, 0);
  call.k = part_view(fused, 1);
  call.v = part_view(fused, 2);
  forward(call, writes(y), cuda::pointer<float>(log_sum_exp));
  EXPECT_TRUE(test::same_bits(y.to(Device{}), expected.value().to(Device{})));
  cuda::listed_attention_fast::backward(
      {call, reads(y), reads(dy), cuda::pointer<const float>(log_sum_exp), nullptr,
       part_view(dfused, 0), part_view(dfused, 1), part_view(dfused, 2), nullptr},
      context.index, 1);
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
    EXPECT_TRUE(test::same_bits(part_of(dfused, part), gradient)) << part;
  }
}

TEST(CudaListedAttentionFast, MechanismsTakeIt) {
  constexpr int64_t T = 100, H = 2, K = 16;
  MixerOptions options;
  options.width = H * K;
  options.heads = H;
  options.max_length = T;
  std::vector<uint8_t> valid(T, 1);
  valid[3] = valid[T - 1] = 0;
  struct Taker {
    const char *mechanism, *parameters;
    Form form = Form::noncausal;
  };
  for (const auto& [mechanism, parameters, form] :
       {Taker{"bigbird", "{block: 16, random: 0}"}, Taker{"sparse_fixed", "{block: 9, columns: 2}"},
        Taker{"sparse_fixed", "{block: 32, columns: 2, dup_own_block: true}", Form::causal},
        Taker{"longformer", "{window: 40, global_tokens: 3}"},
        Taker{"longformer", "{window: 24, global_tokens: 3}", Form::causal},
        Taker{"reformer", "{chunk: 16}"}}) {
    options.form = form;
    const auto run = [&, mechanism = mechanism, parameters = parameters](DType dtype,
                                                                         Device device) {
      const test::MadeMixer mixer(mechanism, parameters, options, dtype, device);
      std::vector<Variable> x;
      for (const char* name : {"q", "k", "v"}) {
        x.emplace_back(random_tensor({1, T, H, K}, name).to(DType::bf16).to(dtype).to(device),
                       true);
      }
      MixerContext context;
      context.key_mask = Tensor::from(valid, {1, T}).to(device);
      const Variable y = mixer.mix(x[0], x[1], x[2], context).y;
      backward({y}, {random_tensor(y.shape(), "dy").to(DType::bf16).to(dtype).to(device)});
      std::vector<Tensor> found{y.value().to(Device{})};
      for (const Variable& input : x) {
        if (input.grad().defined()) found.push_back(input.grad().to(Device{}));
      }
      return found;
    };
    const std::vector<Tensor> expected = run(DType::f64, Device{});
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    const std::vector<Tensor> got = run(DType::bf16, kGpu);
    test::expect_close_in_bf16(got, expected, run(DType::bf16, Device{}), mechanism);
  }
}

ListedAttentionTensors zeros(int64_t T, int64_t K, int64_t V, DType dtype = DType::bf16) {
  ListedAttentionTensors in;
  in.q = in.k = Tensor::zeros({1, T, 1, K}, dtype, kGpu);
  in.v = Tensor::zeros({1, T, 1, V}, dtype, kGpu);
  return in;
}

ListedAttentionContext groups_of(int64_t group, double dropout = 0) {
  ListedAttentionContext context;
  context.options.group = group;
  context.options.dropout = dropout;
  return context;
}

TEST(CudaListedAttentionFast, WhatItDoesNotCoverGoesToThePlainKernels) {
  const auto why = [](const ListedAttentionTensors& in, int64_t group = 16, double dropout = 0) {
    return cuda::why_plain_listed_attention(groups_of(group, dropout), in);
  };
  const ListedAttentionTensors usual = zeros(16, 16, 16);
  EXPECT_EQ(why(usual), "");
  EXPECT_EQ(why(usual, 8), "");
  EXPECT_EQ(why(zeros(40, 128, 8)), "");
  EXPECT_EQ(why(zeros(16, 16, 16, DType::f32)), "values of f32");
  EXPECT_EQ(why(usual, 7), "lists that fewer than 8 queries share");
  EXPECT_EQ(why(usual, 16, 0.1), "");
  EXPECT_EQ(why(zeros(16, 12, 16)), "keys of 12 and values of 16 elements per head");
  EXPECT_EQ(why(zeros(16, 16, 136)), "");
  EXPECT_EQ(why(zeros(16, 136, 16)), "keys of 136 and values of 16 elements per head");
  EXPECT_EQ(why(zeros(15, 16, 16)), "fewer than 16 queries");
  ListedAttentionTensors other = usual;
  other.q = Tensor::zeros({16 * 16 + 1}, DType::bf16, kGpu).slice(1, {1, 16, 1, 16});
  EXPECT_EQ(why(other), "tensors that do not begin on 16 bytes");

  EXPECT_TRUE(cuda::listed_attention_is_fast(groups_of(16), usual));
  EXPECT_FALSE(cuda::listed_attention_is_fast(groups_of(1), usual));
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  EXPECT_EQ(
      test::message_of<UsageError>([&] { cuda::listed_attention_is_fast(groups_of(1), usual); }),
      "listed attention: backend tensor_cores was requested, but the kernels on tensor cores "
      "do not cover lists that fewer than 8 queries share; use backend auto");
  // Decoding token by token is left to the plain kernels.
  EXPECT_FALSE(cuda::listed_attention_is_fast(groups_of(16), zeros(1, 16, 16)));
  const UseKernels plain(KernelChoice::plain, kGpu);
  EXPECT_FALSE(cuda::listed_attention_is_fast(groups_of(16), usual));
}

TEST(CudaListedAttentionFast, WhatItDoesNotCoverIsSaidOnce) {
  // A line that was logged once is not logged again when the test is repeated.
  static int64_t width = 19;
  width += 2;
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    cuda::listed_attention_is_fast(groups_of(16), zeros(17, width, width));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string said = concat("do not cover keys of ", width, " and values of ", width);
  const size_t first = log.find(said);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(said, first + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace linnet
