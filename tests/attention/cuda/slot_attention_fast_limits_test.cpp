// Slot attention on tensor cores gives what the CPU computes in double for extreme logits and
// reads, for one valid token, beside documents of NaN and over long sums.
#include <algorithm>

#include "tests/attention/cuda/slot_attention_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::slot_attention_fast_inputs;
using test::kGpu;

// Slots of one part have what one query asks for; or all of another part are empty.
TEST(CudaSlotAttentionFastLimits, PartsOfSlotsMayCountForNothing) {
  const Setting s{"", 1, 24, 1, 136, 16, 16, false, false, true, 0.4};
  for (const int64_t largest : {10, 70, 130}) {
    SCOPED_TRACE(largest);
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[3].elements(); ++i) {
      const int64_t slot = i % s.N, token = i / s.N;
      double& logit = in[3].data<double>()[i];
      // Only the first token is in some slots, whose keys are those of the queries.
      if (slot / 64 == largest / 64) logit += token == 0 ? 30 : 0;
      if (largest == 70 && slot < 64) logit = -std::numeric_limits<double>::infinity();
    }
    for (int64_t c = 0; c < s.K; ++c) in[1].data<double>()[c] = in[0].data<double>()[20 * s.K + c];
    for (const size_t i : {size_t{1}, size_t{3}}) in[i] = in[i].to(DType::bf16).to(DType::f64);
    expect_what_the_cpu_computes(s, in);
  }
}

// Copies end where documents do: weights of 0 would spread the values beyond, if they are NaN.
TEST(CudaSlotAttentionFastLimits, DocumentsBesideOneOfNanAreAsBesideAnyOther) {
  constexpr int64_t kBegin = 30, kEnd = 70;
  struct Case {
    int64_t width, readers;
  };
  for (const auto& [width, readers] : {Case{16, 100}, {72, 100}, {16, 0}, {72, 0}}) {
    SCOPED_TRACE(concat("width ", width, readers == 0 ? ", causal" : ""));
    const Setting s{"",    1,     100,  1,   8,       width,         width,
                    false, false, true, 0.2, readers, {kBegin, kEnd}};
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    std::vector<Tensor> in = inputs_of(s);
    const std::vector<Tensor> expected = run(s, in, kGpu);
    std::vector<uint8_t> mask(static_cast<size_t>(s.T), 1);
    std::fill(mask.begin() + kBegin, mask.begin() + kEnd, uint8_t{0});
    put_nan_behind(mask, in);
    const std::vector<Tensor> got = run(s, in, kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      const std::vector<double> before = expected[i].to_vector<double>();
      const std::vector<double> after = got[i].to_vector<double>();
      // Memories; causal, that of the last document.
      if (readers == 0 && i >= 1 && i <= 3) {
        EXPECT_EQ(after, before) << "result " << i;
        continue;
      }
      const bool of_documents = i >= 1 && i <= 3;
      const size_t places = of_documents ? 3 : mask.size(), each = before.size() / places;
      for (size_t j = 0; j < before.size(); ++j) {
        const bool of_nan = of_documents ? j / each == 1 : mask[j / each] == 0;
        ASSERT_TRUE(of_nan || after[j] == before[j]) << "result " << i << ", number " << j;
      }
    }
  }
}

// Where logits rise by more than weights may, chunks fall into tiles: at one token, at every token,
// or in one slot only.
TEST(CudaSlotAttentionFastLimits, LogitsMayRiseAndFallByAnyAmount) {
  const auto change = [](const Setting& s, const auto& offset) {
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[3].elements(); ++i) {
      in[3].data<double>()[i] += offset(i / (s.H * s.N) % s.T, i % s.N);
    }
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    return in;
  };
  for (const Setting& s :
       {Setting{"rises", 1, 80, 1, 8, 16, 16, true, false, true, 0.2},
        Setting{"rises, wider", 1, 140, 1, 8, 64, 64, false, false, true, 0.1}}) {
    expect_what_the_cpu_computes(s, change(s, [](int64_t t, int64_t slot) {
                                   return (t >= 21 && slot % 2 == 0 ? 50.0 : 0.0) +
                                          (t >= 70 ? 90.0 : 0.0);
                                 }));
  }
  const Setting steep{
      "rises and falls with every token", 1, 40, 1, 8, 16, 16, false, false, true, 0.2};
  expect_what_the_cpu_computes(steep, change(steep, [](int64_t t, int64_t slot) {
                                 return (slot % 2 == 0 ? 60.0 : -60.0) * static_cast<double>(t);
                               }));
  const Setting high{"logits of 80", 1, 70, 1, 8, 16, 16, false, false, true, 0.2};
  expect_what_the_cpu_computes(high, change(high, [](int64_t t, int64_t slot) {
                                 return (t * 7 + slot * 3) % 5 < 3 ? 80.0 : -80.0;
                               }));
}

// Slots have keys of +-1, each its own, so that logits of +-80 are the same in bf16; keys or
// queries of zero weigh all slots alike.
TEST(CudaSlotAttentionFastLimits, ReadsMayBeOfAnySizeOrZero) {
  const Setting s{"reads of 80", 1, 70, 1, 8, 16, 16, false, false, true, 80.0 / 16};
  std::vector<Tensor> in = inputs_of(s);
  for (int64_t i = 0; i < 70 * 16; ++i) {
    double &query = in[0].data<double>()[i], &key = in[1].data<double>()[i];
    query = query > 0 ? 1 : -1;
    key = i < 8 * 16 ? (key > 0 ? 1 : -1) : in[1].data<double>()[i - 8 * 16];
  }
  for (int64_t i = 0; i < 70 * 8; ++i) in[3].data<double>()[i] = i / 8 % 8 == i % 8 ? 40 : -40;
  expect_what_the_cpu_computes(s, in);
  for (const size_t zero : {0, 1}) {
    const Setting none{zero == 0 ? "queries of zero" : "keys of zero", 1, 70, 1, 8, 16, 16};
    in = inputs_of(none);
    in[zero].fill(0);
    expect_what_the_cpu_computes(none, in);
  }
}

// The carried memory does not vanish before them, and its gradients are finite.
TEST(CudaSlotAttentionFastLimits, FirstWritersAfterMaskedTokensMayExceedWhatIsCarried) {
  const Setting s{"after masked tokens", 1, 80, 1, 8, 16, 16, true, true};
  for (const int64_t masked : {1, 5, 16, 20}) {
    SCOPED_TRACE(masked);
    std::vector<uint8_t> mask(80, 1);
    for (const int64_t begin : {0, 48}) std::fill_n(mask.begin() + begin, masked, uint8_t{0});
    std::vector<Tensor> in = inputs_of(s);
    for (const int64_t begin : {0, 48}) {
      for (int64_t slot = 0; slot < 8; ++slot) {
        in[3].data<double>()[(begin + masked) * 8 + slot] = begin == 0 ? 100 : 250;
      }
    }
    expect_what_the_cpu_computes(s, in, mask);
  }
}

TEST(CudaSlotAttentionFastLimits, OneValidToken) {
  const Setting s{"one valid token", 2, 80, 1, 8, 16, 16, false, true};
  std::vector<uint8_t> mask(160, 0);
  mask[37] = mask[80 + 79] = 1;
  expect_what_the_cpu_computes(s, inputs_of(s), mask);
  const Setting none{"none", 1, 80, 1, 8, 16, 16, true, true};
  expect_what_the_cpu_computes(none, inputs_of(none), std::vector<uint8_t>(80, 0));
}

// The mean of keys and of values says nothing to logits, which get the gradients of small
// differences.
TEST(CudaSlotAttentionFastLimits, GradientsOfLogitsSurviveKeysAndValuesWithAMean) {
  const std::vector<Setting> settings{
      {"a mean", 1, 130, 1, 16, 16, 16, false, false, true, 0.25},
      {"wide", 1, 70, 1, 8, 72, 136, false, false, true, 0.1},
      {"many slots", 1, 70, 1, 72, 16, 16, false, false, true, 0.25},
      {"dropout", 1, 70, 1, 16, 16, 16, false, false, true, 0.25, 0, {}, 0.3},
  };
  for (const Setting& s : settings) {
    std::vector<Tensor> in = inputs_of(s);
    for (const size_t i : {size_t{1}, size_t{2}}) {
      for (int64_t j = 0; j < in[i].elements(); ++j) in[i].data<double>()[j] += 2;
      in[i] = in[i].to(DType::bf16).to(DType::f64);
    }
    expect_what_the_cpu_computes(s, in);
  }
}

// A memory of very many tokens, to which a chunk adds little: what tensor cores cut off of a sum
// would be missing after some chunks.
TEST(CudaSlotAttentionFastLimits, LongSumsLoseNoBits) {
  const Setting s{"", 1, 2048, 1, 8, 16, 16, true};
  std::vector<Tensor> in = inputs_of(s);
  for (const size_t i : {size_t{1}, size_t{2}}) in[i].fill(0.3359375);
  in[3].fill(0);
  for (const size_t i : {size_t{4}, size_t{5}}) in[i].fill(1.5);
  in[6].fill(22 * std::log(2.0));
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const auto memory = [&](Device device) {
    std::vector<Variable> given;
    for (size_t i = 0; i < in.size(); ++i) {
      const DType narrow = i < 4 ? DType::bf16 : i < 6 ? DType::f32 : DType::f64;
      given.emplace_back(device == kGpu ? in[i].to(narrow).to(device) : in[i]);
    }
    return slot_attention_causal({given[0], given[1], given[2], given[3]}, {},
                                 {given[4], given[5], given[6]})
        .state;
  };
  const SlotMemory got = memory(kGpu), expected = memory(Device{});
  EXPECT_CLOSE(got.keys.value(), expected.keys.value(), 2e-6);
  EXPECT_CLOSE(got.values.value(), expected.values.value(), 2e-6);
  EXPECT_CLOSE(got.mass.value(), expected.mass.value(), 1e-7);
}

}  // namespace
}  // namespace linnet
