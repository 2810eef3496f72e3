// The orthogonal memory on the device gives what the CPU computes in double: reads, carried sums,
// counts and every gradient, with everything that the contract allows.
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"

#include "tests/attention/cuda/both_devices.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

struct Setting {
  const char* name;
  MemoryScope scope;
  int64_t window, B, T, H, r, d;
  bool state = false, segments = false;
  std::vector<int32_t> starts = {};  // positions of the first tokens
  int64_t source = -1;               // codes of cross-attention
};

std::vector<uint8_t> mask_of(int64_t rows, int64_t length) {
  std::vector<uint8_t> mask(static_cast<size_t>(rows * length), 1);
  for (int64_t i = 0; i < rows * length; ++i) mask[static_cast<size_t>(i)] = i % 5 == 1 ? 0 : 1;
  // The last row begins with nothing.
  for (int64_t t = 0; t < std::min<int64_t>(length, 4); ++t) {
    mask[static_cast<size_t>((rows - 1) * length + t)] = 0;
  }
  return mask;
}

struct Outcome {
  std::vector<Tensor> values;  // y, carried sums, gradients
  std::vector<int64_t> counts, memory_tokens;
};

Outcome run(const Setting& s, bool masks, const std::vector<Tensor>& tensors, Device device) {
  const int64_t codes = tensors[1].size(1);
  OrthogonalMemoryContext context;
  context.options = {s.scope, s.window, 0.8, false};
  context.cross = s.source >= 0;
  context.place.time_offset = 3;
  const Tensor step = Tensor::full({}, 8, DType::i64, device);
  if (masks) {
    // With dropout, whose step the device finds in its memory.
    context.options.dropout = 0.3;
    context.options.dropout_key = RandomKey{3, 8, 5};
    if (device != Device{}) {
      context.options.dropout_key.step = 0;
      context.options.dropout_key.device_step = static_cast<const uint64_t*>(step.raw());
    }
    std::vector<int64_t> examples;
    for (int64_t b = 0; b < s.B; ++b) examples.push_back(90 - b);
    context.place.examples = Tensor::from(examples, {s.B}, device);
    context.query_mask = Tensor::from(mask_of(s.B, s.T), {s.B, s.T}, device);
    context.code_mask = Tensor::from(mask_of(s.B, codes), {s.B, codes}, device);
  }
  if (s.segments) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < s.B * s.T; ++i) ids.push_back(static_cast<int32_t>(i / 8));
    context.segments = Tensor::from(ids, {s.B, s.T}, device);
  }
  if (!s.starts.empty()) {
    std::vector<int32_t> positions;
    for (const int32_t start : s.starts) {
      for (int64_t t = 0; t < s.T; ++t) positions.push_back(start + static_cast<int32_t>(t));
    }
    context.positions = Tensor::from(positions, {s.B, s.T}, device);
  }
  std::vector<Variable> in;
  for (const Tensor& x : tensors) {
    in.push_back(x.defined() ? Variable(x.to(device), true) : Variable());
  }
  OrthogonalMemoryCarry carry{in[3], in[4], {}};
  if (s.state) {
    std::vector<int64_t> counts;
    for (int64_t b = 0; b < s.B; ++b) counts.insert(counts.end(), {b == 1 ? 0 : 3, b == 0 ? 2 : 0});
    carry.counts = Tensor::from(counts, {s.B, 2}, device);
  }
  const OrthogonalMemoryResult result = orthogonal_memory(in[0], in[1], in[2], carry, context);
  EXPECT_EQ(result.y.value().device(), device);
  EXPECT_EQ(result.y.dtype(), tensors[0].dtype());
  return {test::with_gradients({result.y, result.carry.completed, result.carry.partial}, in),
          result.carry.counts.to_vector<int64_t>(), result.memory_tokens.to_vector<int64_t>()};
}

// q, f, basis, completed, partial in double, rounded as the device will see them.
std::vector<Tensor> inputs_of(const Setting& s, bool shared, bool masks, DType dtype) {
  const int64_t M = shared ? 1 : s.H, codes = s.source >= 0 ? s.source : s.T;
  const Shape basis = shared ? Shape{s.r, s.H * s.d} : Shape{s.H, s.r, s.d};
  std::vector<Tensor> in{random_tensor({s.B, s.T, s.H, s.d}, "q"),
                         random_tensor({s.B, codes, s.H, s.d}, "f"), random_tensor(basis, "basis"),
                         random_tensor({s.B, M, s.r}, "completed"),
                         random_tensor({s.B, M, s.r}, "partial")};
  if (!s.state) in[3] = in[4] = Tensor();
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) continue;
    in[i] = in[i].to(i < 2 ? dtype : DType::f32).to(DType::f64);
    if (!masks || i > 1) continue;
    test::put_nan_behind(mask_of(s.B, in[i].size(1)), in[i]);
  }
  return in;
}

std::vector<Setting> settings() {
  const auto windows = MemoryScope::completed_windows, prefix = MemoryScope::prefix,
             whole = MemoryScope::whole;
  return {{"windows", windows, 4, 2, 21, 2, 3, 5},
          {"windows of one", windows, 1, 1, 9, 2, 5, 4},
          {"many windows", windows, 16, 1, 300, 1, 8, 8},
          {"windows, segments", windows, 3, 2, 20, 2, 3, 4, false, true},
          {"windows, state", windows, 4, 3, 10, 2, 3, 4, true, false, {6, 9, 4}},
          {"windows, state, inside", windows, 30, 2, 5, 1, 3, 4, true, false, {6, 9}},
          {"windows, state, up to the end", windows, 4, 2, 6, 2, 3, 4, true, false, {6, 10}},
          {"windows, all", windows, 3, 2, 20, 2, 3, 4, true, true, {6, 10}},
          {"windows, decoding", windows, 4, 3, 1, 2, 3, 4, true, false, {5, 8, 7}},
          {"windows, no tokens", windows, 4, 2, 0, 2, 3, 4, true},
          {"prefix", prefix, 0, 2, 13, 2, 3, 5},
          {"prefix, state", prefix, 0, 2, 9, 2, 40, 33, true},
          {"prefix, decoding", prefix, 0, 3, 1, 2, 3, 4, true},
          {"prefix, segments", prefix, 0, 2, 20, 1, 3, 4, true, true},
          {"whole", whole, 0, 2, 13, 2, 3, 5},
          {"whole, segments", whole, 0, 2, 20, 2, 3, 4, false, true},
          {"cross", whole, 0, 2, 6, 2, 3, 5, false, false, {}, 23},
          {"cross, encoded source", whole, 0, 2, 6, 2, 3, 5, true, false, {}, 0},
          {"cross, no source", whole, 0, 2, 6, 2, 3, 5, false, false, {}, 0}};
}

TEST(CudaOrthogonalMemory, GivesWhatTheCpuComputesInDouble) {
  for (const Setting& s : settings()) {
    for (const bool shared : {false, true}) {
      for (const bool masks : {false, true}) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          SCOPED_TRACE(std::string(s.name) + (shared ? ", shared" : "") +
                       (masks ? ", masks " : " ") + std::string(name_of(dtype)));
          const std::vector<Tensor> wide = inputs_of(s, shared, masks, dtype);
          std::vector<Tensor> narrow = wide;
          for (size_t i = 0; i < narrow.size(); ++i) {
            if (narrow[i].defined()) narrow[i] = narrow[i].to(i < 2 ? dtype : DType::f32);
          }
          const Outcome expected = run(s, masks, wide, Device{});
          const Outcome got = run(s, masks, narrow, kGpu);
          EXPECT_EQ(got.counts, expected.counts);
          EXPECT_EQ(got.memory_tokens, expected.memory_tokens);
          // Gradients of carried prefix sums add up every token: 1.06e-5 without fused
          // multiply-adds.
          test::expect_close_in(dtype, got.values, expected.values, 2e-5,
                                [&] { return run(s, masks, narrow, Device{}).values; });
        }
      }
    }
  }
}

// Sequences of both dtypes are kept in f32; what comes back is in the dtype of its input.
TEST(CudaOrthogonalMemory, QueriesAndCodesMayDifferInDtype) {
  const Setting s{"", MemoryScope::completed_windows, 4, 2, 21, 2, 8, 8, true, true};
  for (const size_t narrow : {0, 1}) {
    std::vector<Tensor> wide = inputs_of(s, false, true, DType::f32), mixed = wide;
    for (size_t i = 0; i < wide.size(); ++i) {
      mixed[i] = wide[i].to(i == narrow ? DType::bf16 : DType::f32);
      wide[i] = mixed[i].to(DType::f64);
    }
    const Outcome expected = run(s, true, wide, Device{});
    const Outcome got = run(s, true, mixed, kGpu), plain = run(s, true, mixed, Device{});
    EXPECT_EQ(got.counts, expected.counts);
    EXPECT_EQ(got.memory_tokens, expected.memory_tokens);
    for (size_t i = 0; i < got.values.size(); ++i) {
      SCOPED_TRACE(concat("input ", narrow, " in bf16, result ", i));
      // y and the gradients of q and f: the carried sums are results 1 and 2.
      const bool is_narrow = i == 3 + narrow || (i == 0 && narrow == 0);
      EXPECT_EQ(got.values[i].dtype(), is_narrow ? DType::bf16 : DType::f32);
      test::expect_close_in(got.values[i].dtype(), {got.values[i]}, {expected.values[i]}, 2e-5,
                            [&] { return std::vector<Tensor>{plain.values[i]}; });
    }
  }
}

TEST(CudaOrthogonalMemory, RepeatsBitForBit) {
  const Setting s{"", MemoryScope::completed_windows, 4, 2, 300, 2, 8, 8};
  std::vector<Tensor> in = inputs_of(s, false, false, DType::f32);
  for (Tensor& x : in) x = x.defined() ? x.to(DType::f32) : x;
  const Outcome once = run(s, false, in, kGpu), again = run(s, false, in, kGpu);
  for (size_t i = 0; i < once.values.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once.values[i].to(Device{}), again.values[i].to(Device{})));
  }
}

TEST(CudaOrthogonalMemory, RefusesWhatDoesNotFit) {
  OrthogonalMemoryContext context;
  const auto x = [](int64_t length, DType dtype) {
    return Variable(Tensor::zeros({1, length, 2, 3}, dtype, kGpu));
  };
  const Variable basis(Tensor::zeros({2, 4, 3}, DType::f32, kGpu));
  const auto call = [&](const Variable& q, const Variable& f) {
    return test::message_of<Error>([&] { orthogonal_memory(q, f, basis, {}, context); });
  };
  const Variable q = x(4, DType::f32);
  EXPECT_NE(call(q, q).find("at least 1 position"), std::string::npos);
  context.options.window = 2;
  EXPECT_NE(call(q, x(5, DType::f32)).find("cross-attention only"), std::string::npos);
  EXPECT_EQ(call(q, q), "");
  const Variable wide = x(4, DType::f64);
  EXPECT_NE(call(wide, wide).find("use --device cpu"), std::string::npos);
}

}  // namespace
}  // namespace linnet
