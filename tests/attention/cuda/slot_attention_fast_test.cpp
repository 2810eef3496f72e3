// Slot attention on tensor cores gives what the CPU computes in double, at the edges of chunks,
// tiles and value tiles, for views that are read in place, and for extreme logits.
#include "attention/primitives/cuda/slot_attention_fast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/primitives/slot_attention.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/both_devices.h"
#include "tests/attention/cuda/fused_projection.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

struct Setting {
  const char* name;
  int64_t B, T, H, N, K, V;
  bool state = false, masks = false, mask_empty = true;
  double scale = 0.4;
  int64_t readers = 0;                 // of a finished memory; 0: causal
  std::vector<int64_t> segments = {};  // where they begin in every row, and in row 1 a token later
  double dropout = 0;
};

// Row 0 lacks its first tokens and then every fifth, the last row its end.
std::vector<uint8_t> mask_of(int64_t rows, int64_t length) {
  std::vector<uint8_t> mask(static_cast<size_t>(rows * length), 1);
  for (int64_t t = 0; t < length; ++t) {
    mask[static_cast<size_t>(t)] = t < 3 || t % 5 == 3 ? 0 : 1;
    mask[static_cast<size_t>((rows - 1) * length + t)] = t < length / 2 ? 1 : 0;
  }
  return mask;
}

std::vector<int64_t> every_token(int64_t count) {
  std::vector<int64_t> begins(static_cast<size_t>(count));
  std::iota(begins.begin(), begins.end(), int64_t{0});
  return begins;
}

Tensor segment_ids(const Setting& s) {
  std::vector<int32_t> ids(static_cast<size_t>(s.B * s.T), 7);
  for (int64_t i = 0; i < s.B * s.T; ++i) {
    for (const int64_t begin : s.segments) {
      if (i % s.T >= begin + i / s.T) ids[static_cast<size_t>(i)] = static_cast<int32_t>(begin);
    }
  }
  return Tensor::from(ids, {s.B, s.T});
}

// q, k, v, logits, keys, values and mass in f64, as bf16 and f32 hold the first six.
std::vector<Tensor> inputs_of(const Setting& s) {
  std::vector<Tensor> in{random_tensor({s.B, s.readers == 0 ? s.T : s.readers, s.H, s.K}, "q"),
                         random_tensor({s.B, s.T, s.H, s.K}, "k"),
                         random_tensor({s.B, s.T, s.H, s.V}, "v"),
                         random_tensor({s.B, s.T, s.H, s.N}, "logits"),
                         random_tensor({s.B, s.H, s.N, s.K}, "keys"),
                         random_tensor({s.B, s.H, s.N, s.V}, "values"),
                         random_tensor({s.B, s.H, s.N}, "mass")};
  for (size_t i = 0; i < 4; ++i) in[i] = in[i].to(DType::bf16).to(DType::f64);
  for (size_t i = 4; i < 6; ++i) in[i] = in[i].to(DType::f32).to(DType::f64);
  // Memories as of many tokens, which matter for long; some slots are empty.
  for (int64_t i = 0; i < in[6].elements(); ++i) in[6].data<double>()[i] += 3;
  for (int64_t i = 1; i < in[6].elements(); i += 3) {
    in[6].data<double>()[i] = -std::numeric_limits<double>::infinity();
    for (const size_t part : {size_t{4}, size_t{5}}) {
      const int64_t width = in[part].size(3);
      for (int64_t c = 0; c < width; ++c) in[part].data<double>()[i * width + c] = 0;
    }
  }
  if (!s.state) in[4] = in[5] = in[6] = Tensor();
  return in;
}

// Masked tokens hold NaN.
void put_nan_behind(const std::vector<uint8_t>& mask, std::vector<Tensor>& in) {
  for (size_t i = 0; i < 4; ++i) {
    const auto tokens = static_cast<int64_t>(mask.size());
    if (in[i].size(0) * in[i].size(1) != tokens) continue;  // readers from elsewhere
    test::put_nan_behind(mask, in[i]);
  }
}

// o, the memory, then the gradients of every defined input.
std::vector<Tensor> run(const Setting& s, const std::vector<Tensor>& tensors, Device device,
                        const std::vector<uint8_t>& mask = {}) {
  SlotAttentionContext context;
  context.options.scale = s.scale;
  context.options.mask_empty = s.mask_empty;
  if (s.dropout > 0) {
    context.options.dropout = s.dropout;
    context.options.dropout_key = RandomKey{3, 8, 5};
    std::vector<int64_t> examples(static_cast<size_t>(s.B));
    std::iota(examples.begin(), examples.end(), int64_t{40});
    context.place = {Tensor::from(examples, {s.B}, device), 17};
  }
  if (!s.segments.empty()) context.segments = segment_ids(s).to(device);
  if (!mask.empty()) {
    context.key_mask = Tensor::from(mask, {s.B, s.T}, device);
    if (s.readers == 0 || s.readers == s.T) context.query_mask = context.key_mask;
  }
  std::vector<Variable> in;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DType stored = i < 4 ? DType::bf16 : i < 6 ? DType::f32 : DType::f64;
    in.push_back(test::input_on(device, tensors[i], stored));
  }
  const SlotAttentionVariables variables{in[0], in[1], in[2], in[3]};
  SlotAttentionResult result;
  if (s.readers == 0) {
    result = slot_attention_causal(variables, context, {in[4], in[5], in[6]});
  } else {
    result.state = slot_attention_memory(variables, context);
    result.o = slot_attention_read(variables, result.state, context);
  }
  return test::with_gradients({result.o, result.state.keys, result.state.values, result.state.mass},
                              in);
}

// Infinite masses (empty slots) agree exactly and count as 0 otherwise.
Tensor finite(const Tensor& x, std::vector<bool>& infinite) {
  const Tensor out = x.to(Device{}).to(DType::f64).clone();
  for (int64_t i = 0; i < out.elements(); ++i) {
    double& value = out.data<double>()[i];
    infinite.push_back(std::isinf(value));
    if (infinite.back()) value = 0;
  }
  return out;
}

void expect_what_the_cpu_computes(const Setting& s, std::vector<Tensor> in,
                                  const std::vector<uint8_t>& mask = {}) {
  SCOPED_TRACE(s.name);
  if (!mask.empty()) put_nan_behind(mask, in);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = run(s, in, Device{}, mask);
  const std::vector<Tensor> got = run(s, in, kGpu, mask);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(got[0].dtype(), DType::bf16);
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<bool> got_infinite, expected_infinite;
    const Tensor a = finite(got[i], got_infinite), b = finite(expected[i], expected_infinite);
    EXPECT_EQ(got_infinite, expected_infinite);
    EXPECT_CLOSE(a, b, 1e-2);
  }
}

TEST(CudaSlotAttentionFast, GivesWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", 1, 64, 1, 64, 64, 64},
      {"a token more", 1, 65, 2, 8, 32, 32},
      {"a token less, of three chunks", 1, 191, 1, 16, 16, 16, true},
      {"with all", 2, 130, 2, 40, 64, 64, true, true, true, 0.15},
      {"short", 2, 17, 2, 8, 16, 8, true, true, false},
      {"empty slots are read", 2, 20, 1, 24, 16, 16, true, false, false},
      {"odd widths", 1, 70, 1, 24, 24, 40, false, true},
      {"wide, with tiles of values", 1, 66, 1, 24, 128, 72, true, false, true, 0.1},
      {"tiles of values", 1, 66, 1, 8, 16, 40, true},
      {"wide values", 2, 70, 1, 8, 16, 200, true, true, true, 0.3},
      {"wide, of two heads", 1, 70, 2, 40, 128, 128, true, true, false, 0.08},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

TEST(CudaSlotAttentionFast, FinishedMemoriesAreWrittenAndRead) {
  const std::vector<Setting> settings{
      {"noncausal", 2, 70, 1, 16, 16, 16, false, true, true, 0.4, 70},
      {"cross", 2, 130, 2, 8, 32, 24, false, true, true, 0.2, 20},
      {"cross and wide", 1, 70, 1, 8, 72, 72, false, false, true, 0.2, 20},
      {"empty slots are read", 1, 20, 1, 24, 16, 40, false, false, false, 0.4, 66},
  };
  for (const Setting& s : settings) {
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t t = 0; t < s.T; ++t) in[3].data<double>()[t * s.H * s.N] += t == 50 ? 90 : 0;
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, in, mask);
  }
}

// By several launches, whose soft-maxes are joined.
TEST(CudaSlotAttentionFast, ManySlots) {
  const std::vector<Setting> settings{
      {"a part more", 2, 20, 2, 72, 16, 16, true, true, true, 0.6},
      {"three parts", 1, 66, 1, 136, 32, 24, false, false, true, 0.3},
      {"wide, with dropout", 1, 20, 2, 128, 72, 72, true, false, false, 0.1, 0, {}, 0.2},
      {"documents", 1, 40, 1, 128, 16, 16, false, false, true, 0.4, 0, {16, 21}},
      {"cross", 2, 20, 1, 72, 16, 40, false, true, true, 0.3, 18, {}, 0.3},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

// Slots of one part have what one query asks for; or all of another part are empty.
TEST(CudaSlotAttentionFast, PartsOfSlotsMayCountForNothing) {
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

// The same draws: one that differs would be off by more than any rounding.
TEST(CudaSlotAttentionFast, DropsWhatTheCpuDrops) {
  const std::vector<Setting> settings{
      {"causal", 2, 70, 2, 24, 16, 16, true, true, true, 0.4, 0, {}, 0.3},
      {"documents", 1, 68, 1, 40, 16, 24, false, false, false, 0.4, 0, {20, 64}, 0.5},
      {"wide", 1, 66, 1, 16, 72, 136, false, false, true, 0.1, 0, {}, 0.2},
      {"cross", 2, 30, 2, 8, 16, 16, false, true, true, 0.3, 20, {}, 0.4},
  };
  for (const Setting& s : settings) {
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, inputs_of(s), mask);
  }
}

// As a captured graph finds it.
TEST(CudaSlotAttentionFast, ReadsTheStepOfDrawsFromTheDevice) {
  const Setting s{"", 1, 20, 1, 8, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  const auto variable = [&](size_t i) { return Variable(in[i].to(DType::bf16).to(kGpu)); };
  const auto o = [&](uint64_t step, const uint64_t* device_step) {
    SlotAttentionContext context;
    context.options.dropout = 0.5;
    context.options.dropout_key = {3, step, 5, device_step};
    return slot_attention_causal({variable(0), variable(1), variable(2), variable(3)}, context)
        .o.value()
        .to(Device{});
  };
  const Tensor step = Tensor::from(std::vector<int64_t>{8}, {1}, kGpu);
  const Tensor expected = o(8, nullptr);
  EXPECT_TRUE(test::same_bits(o(0, static_cast<const uint64_t*>(step.raw())), expected));
  EXPECT_FALSE(test::same_bits(o(0, nullptr), expected));
}

// Packed documents: boundaries at the edges of chunks and inside, documents of one token and of
// several chunks.
TEST(CudaSlotAttentionFast, DocumentsSeeOnlyThemselves) {
  const std::vector<int64_t> begins{40, 41, 42, 64, 66, 135};
  const std::vector<Setting> settings{
      {"causal", 2, 140, 1, 8, 16, 16, true, true, true, 0.4, 0, begins},
      {"every token its own", 1, 18, 1, 8, 16, 16, false, false, true, 0.4, 0, every_token(18)},
      {"wider", 1, 100, 2, 40, 40, 72, false, false, false, 0.2, 0, {50, 64}},
      {"noncausal", 2, 140, 1, 16, 16, 16, false, true, true, 0.4, 140, begins},
      {"noncausal, wider", 1, 100, 2, 24, 64, 24, false, false, false, 0.2, 100, {3, 64}},
  };
  for (const Setting& s : settings) {
    std::vector<Tensor> in = inputs_of(s);
    // Weights of one document are nothing beside those of another.
    for (int64_t t = 20; t < s.T; ++t) in[3].data<double>()[t * s.H * s.N] += t < 64 ? 90 : -60;
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    const std::vector<uint8_t> mask = s.masks ? mask_of(s.B, s.T) : std::vector<uint8_t>();
    expect_what_the_cpu_computes(s, in, mask);
  }
}

// What is copied ends where they do: weights of 0 would spread what lies beyond, if that is NaN.
TEST(CudaSlotAttentionFast, DocumentsBesideOneOfNanAreAsBesideAnyOther) {
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
TEST(CudaSlotAttentionFast, LogitsMayRiseAndFallByAnyAmount) {
  const auto change = [](const Setting& s, const auto& offset) {
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[3].elements(); ++i) {
      in[3].data<double>()[i] += offset(i / (s.H * s.N) % s.T, i % s.N);
    }
    in[3] = in[3].to(DType::bf16).to(DType::f64);
    return in;
  };
  const Setting s{"rises", 1, 80, 1, 8, 16, 16, true, false, true, 0.2};
  expect_what_the_cpu_computes(s, change(s, [](int64_t t, int64_t slot) {
                                 return (t >= 21 && slot % 2 == 0 ? 50.0 : 0.0) +
                                        (t >= 70 ? 90.0 : 0.0);
                               }));
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
TEST(CudaSlotAttentionFast, ReadsMayBeOfAnySizeOrZero) {
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

TEST(CudaSlotAttentionFast, OneValidToken) {
  const Setting s{"one valid token", 2, 80, 1, 8, 16, 16, false, true};
  std::vector<uint8_t> mask(160, 0);
  mask[37] = mask[80 + 79] = 1;
  expect_what_the_cpu_computes(s, inputs_of(s), mask);
  const Setting none{"none", 1, 80, 1, 8, 16, 16, true, true};
  expect_what_the_cpu_computes(none, inputs_of(none), std::vector<uint8_t>(80, 0));
}

// What all keys and values have in common says nothing to logits, which get the gradients of small
// differences.
TEST(CudaSlotAttentionFast, GradientsOfLogitsSurviveKeysAndValuesWithAMean) {
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

TEST(CudaSlotAttentionFast, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s{"", 1, 100, 2, 8, 16, 16};
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  std::vector<Tensor> in = inputs_of(s);
  const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{})));
  }
  const std::vector<float> before = once[0].to_vector<float>();
  for (const double logit : {5.0, 500.0}) {  // within a tile, and the beginning of another
    in[3].data<double>()[90 * 2 * 8] = logit;
    const std::vector<float> after = run(s, in, kGpu)[0].to_vector<float>();
    for (size_t i = 0; i < 90 * 2 * 16; ++i) ASSERT_EQ(before[i], after[i]);
    EXPECT_NE(before[90 * 2 * 16], after[90 * 2 * 16]);
  }
}

// One array [B,T,3,H,K] holds q, k and v: the kernels read them where they are.
TEST(CudaSlotAttentionFast, ReadsFusedProjectionsInPlace) {
  constexpr int64_t B = 2, T = 70, H = 2, K = 16, N = 8;
  const Tensor fused = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  const Tensor logits = random_tensor({B, T, H, N}, "logits").to(DType::bf16).to(kGpu);
  std::vector<Variable> dense;
  for (int64_t part = 0; part < 3; ++part) dense.emplace_back(test::part_of(fused, part).to(kGpu));
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected =
      slot_attention_causal({dense[0], dense[1], dense[2], Variable(logits)}, {}).o;

  const Tensor o = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  cuda::slot_attention_fast::Forward call;
  call.q = test::part_view(fused, 0);
  call.k = test::part_view(fused, 1);
  call.v = test::part_view(fused, 2);
  call.logits = {cuda::pointer<cuda::kernel_bf16>(logits), B, T, H, N};
  call.o = {cuda::pointer<cuda::kernel_bf16>(o), B, T, H, K};
  cuda::slot_attention_fast::forward(call);
  EXPECT_TRUE(test::same_bits(o.to(Device{}), expected.value().to(Device{})));
}

// A memory of very many tokens, to which a chunk adds little: what tensor cores cut off of a sum
// would be missing after some chunks.
TEST(CudaSlotAttentionFast, LongSumsLoseNoBits) {
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
