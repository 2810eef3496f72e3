// Slot attention on the device against the CPU's in double: controls, normalisations, forms, masks,
// documents, carried memories; results and all gradients, f32 and bf16.
#include "attention/primitives/slot_attention/slot_attention.h"

#include <tuple>

#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::ids;
using test::kGpu;
using test::random_tensor;

struct Sizes {
  int64_t B = 2, Tq = 23, Tk = 23, H = 2, N = 5, K = 6, V = 3;
};

// Host tensors in f64.
struct Problem {
  Sizes s;
  SlotAttentionContext context;
  bool causal = true;
  Tensor q, k, v, logits, keys, values, mass, d_o, value_logits;

  Problem(const Sizes& sizes, SlotControl control, SlotNormalizer normalizer, bool is_causal)
      : s(sizes), causal(is_causal) {
    context.options.control = control;
    context.options.normalizer = normalizer;
    context.options.scale = 0.7;
    context.options.floor = 0.3;
    q = random_tensor({s.B, s.Tq, s.H, s.K}, "q");
    k = random_tensor({s.B, s.Tk, s.H, s.K}, "k");
    v = random_tensor({s.B, s.Tk, s.H, s.V}, "v");
    d_o = random_tensor({s.B, s.Tq, s.H, s.V}, "d_o");
    logits = random_tensor({s.B, s.Tk, s.H, s.N}, "logits");
    if (control == SlotControl::exp) return;
    for (int64_t i = 0; i < logits.elements(); ++i) {
      double& logit = logits.data<double>()[i];
      // Logits that are divided by their sum are positive; the first slot is never written.
      if (normalizer == SlotNormalizer::read_time && control == SlotControl::given) {
        logit = std::abs(logit);
      }
      if (i % s.N == 0 && control != SlotControl::sigmoid) logit = 0;
    }
  }
  void carry() {
    keys = random_tensor({s.B, s.H, s.N, s.K}, "keys");
    values = random_tensor({s.B, s.H, s.N, s.V}, "values");
    mass = random_tensor({s.B, s.H, s.N}, "mass");
    for (int64_t i = 0; i < mass.elements(); ++i) {
      double& m = mass.data<double>()[i];
      if (context.options.control != SlotControl::exp) m = std::abs(m);
      if (i % 3 != 1) continue;
      m = slot_empty_mass(context.options);
      for (int64_t c = 0; c < s.K; ++c) keys.data<double>()[i * s.K + c] = 0;
      for (int64_t c = 0; c < s.V; ++c) values.data<double>()[i * s.V + c] = 0;
    }
  }
  void cut() {
    std::vector<int32_t> segments;
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t t = 0; t < s.Tq; ++t) {
        segments.push_back(b == 0 ? (t < 4 ? 0 : t < 5 ? 1 : 2) : (t < s.Tq - 1 ? 7 : 8));
      }
    }
    context.segments = ids(segments, {s.B, s.Tq});
  }
  void drop() {
    context.options.dropout = 0.4;
    context.options.dropout_key = RandomKey{3, 8, 0}.at("layer");
    std::vector<int64_t> examples;
    for (int64_t b = 0; b < s.B; ++b) examples.push_back(90 - 7 * b);
    context.place = {Tensor::from(examples, {s.B}), 11};
  }
  // Masks with NaN behind them.
  void mask() {
    const auto punch = [&](int64_t T, int64_t period, std::initializer_list<Tensor> sequences) {
      std::vector<uint8_t> valid(static_cast<size_t>(s.B * T), 1);
      for (size_t i = 1; i < valid.size(); i += static_cast<size_t>(period)) valid[i] = 0;
      for (const Tensor& x : sequences) {
        const int64_t width = x.elements() / (s.B * T);
        for (int64_t i = 0; i < x.elements(); ++i) {
          if (valid[i / width] == 0) x.data<double>()[i] = std::nan("");
        }
      }
      return Tensor::from(valid, {s.B, T});
    };
    context.query_mask = punch(s.Tq, 4, {q, d_o});
    context.key_mask = punch(s.Tk, 3, {k, v, logits});
  }
};

// o, the memory, then the gradients of all defined inputs, on the host. Memories are f32.
std::vector<Tensor> results(const Problem& p, DType rounded, DType dtype, Device device) {
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  std::vector<Variable> in;
  for (const Tensor* x : {&p.q, &p.k, &p.v, &p.logits, &p.value_logits}) {
    if (x->defined()) in.emplace_back(x->to(rounded).to(dtype).to(device), true);
  }
  SlotMemory memory;
  if (p.keys.defined()) {
    memory = {Variable(p.keys.to(DType::f32).to(wide).to(device), true),
              Variable(p.values.to(DType::f32).to(wide).to(device), true),
              Variable(p.mass.to(device), true)};
    in.insert(in.end(), {memory.keys, memory.values, memory.mass});
  }
  SlotAttentionContext context = p.context;
  for (Tensor* x :
       {&context.query_mask, &context.key_mask, &context.segments, &context.place.examples}) {
    if (x->defined()) *x = x->to(device);
  }
  const SlotAttentionVariables variables{in[0], in[1], in[2], in[3],
                                         p.value_logits.defined() ? in[4] : Variable()};
  Variable o;
  if (p.causal) {
    const SlotAttentionResult result = slot_attention_causal(variables, context, memory);
    o = result.o;
    memory = result.state;
  } else {
    memory = slot_attention_memory(variables, context);
    o = slot_attention_read(variables, memory, context);
  }
  EXPECT_EQ(o.dtype(), dtype);
  EXPECT_EQ(memory.keys.dtype(), wide);
  EXPECT_EQ(o.value().device(), device);
  std::vector<Variable> outputs{o, memory.keys, memory.values, memory.mass};
  std::vector<Tensor> seeds{p.d_o.to(rounded).to(dtype).to(device)};
  for (size_t i = 1; i < outputs.size(); ++i) {
    const Tensor seed = random_tensor(outputs[i].shape(), "seed" + std::to_string(i));
    seeds.push_back(seed.to(DType::f32).to(outputs[i].dtype()).to(device));
  }
  std::vector<Tensor> out;
  for (const Variable& x : outputs) out.push_back(x.value().to(Device{}));
  backward(outputs, seeds);
  for (const Variable& x : in) out.push_back(x.grad().to(Device{}));
  return out;
}

// Infinite masses (empty slots) agree exactly and count as 0 otherwise.
Tensor finite(const Tensor& x, std::vector<bool>& infinite) {
  const Tensor out = x.to(DType::f64).clone();
  for (int64_t i = 0; i < out.elements(); ++i) {
    double& value = out.data<double>()[i];
    infinite.push_back(std::isinf(value));
    if (infinite.back()) value = 0;
  }
  return out;
}

void expect_as_on_the_cpu(const Problem& p, const std::string& what) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Tensor> expected = results(p, dtype, DType::f64, Device{});
    const std::vector<Tensor> got = results(p, dtype, dtype, kGpu);
    const std::vector<Tensor> plain = results(p, dtype, dtype, Device{});
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<bool> infinite[3];
      const Tensor a = finite(got[i], infinite[0]), b = finite(expected[i], infinite[1]);
      const std::string name = concat(what, ", ", name_of(dtype), ", of slots,");
      EXPECT_EQ(infinite[0], infinite[1]) << name << " result " << i;
      test::expect_close_in(
          dtype, {a}, {b}, 1e-5, [&] { return std::vector<Tensor>{finite(plain[i], infinite[2])}; },
          concat(name, i));
    }
  }
}

using Kinds = std::tuple<SlotControl, SlotNormalizer, bool>;  // the last: write_time
const Kinds kKinds[] = {{SlotControl::exp, SlotNormalizer::read_time, false},
                        {SlotControl::exp, SlotNormalizer::read_time, true},
                        {SlotControl::sigmoid, SlotNormalizer::read_time, false},
                        {SlotControl::sigmoid, SlotNormalizer::none, true},
                        {SlotControl::sigmoid, SlotNormalizer::none, false},
                        {SlotControl::relu, SlotNormalizer::read_time, false},
                        {SlotControl::relu, SlotNormalizer::read_time, true},
                        {SlotControl::relu, SlotNormalizer::none, false},
                        {SlotControl::given, SlotNormalizer::read_time, false},
                        {SlotControl::given, SlotNormalizer::none, false}};

class CudaSlotAttention : public testing::TestWithParam<Kinds> {};

TEST_P(CudaSlotAttention, CausalIsTheCpus) {
  const auto& [control, normalizer, write_time] = GetParam();
  for (const bool mask_empty : {true, false}) {
    Problem p(Sizes{}, control, normalizer, true);
    p.context.write_time = write_time;
    p.context.options.mask_empty = mask_empty;
    expect_as_on_the_cpu(p, "plain");
    p.carry();
    p.cut();
    p.mask();
    expect_as_on_the_cpu(p, "memory, documents, masks");
    p.drop();
    expect_as_on_the_cpu(p, "dropout");
  }
}

TEST_P(CudaSlotAttention, NoncausalAndCrossAreTheCpus) {
  const auto& [control, normalizer, write_time] = GetParam();
  if (write_time) return;  // has no order of tokens
  for (const bool mask_empty : {true, false}) {
    Problem p(Sizes{}, control, normalizer, false);
    p.context.options.mask_empty = mask_empty;
    expect_as_on_the_cpu(p, "plain");
    p.cut();
    p.mask();
    p.drop();
    expect_as_on_the_cpu(p, "documents, masks, dropout");
    Problem cross({.Tq = 4}, control, normalizer, false);
    cross.context.options.mask_empty = mask_empty;
    cross.mask();
    cross.drop();
    expect_as_on_the_cpu(cross, "cross");
  }
}
INSTANTIATE_TEST_SUITE_P(All, CudaSlotAttention, testing::ValuesIn(kKinds));

TEST(CudaSlotAttentionSizes, ManySlotsAndChannels) {
  Problem p({.B = 1, .Tq = 3, .Tk = 3, .H = 1, .N = 70, .K = 65, .V = 33}, SlotControl::exp,
            SlotNormalizer::read_time, true);
  expect_as_on_the_cpu(p, "wide");
}

TEST(CudaSlotAttentionSizes, ValuesWithLogitsOfTheirOwn) {
  Problem p(Sizes{}, SlotControl::given, SlotNormalizer::none, true);
  p.value_logits = random_tensor(p.logits.shape(), "value logits");
  p.carry();
  p.cut();
  expect_as_on_the_cpu(p, "given");
}

TEST(CudaSlotAttentionSizes, OneTokenAndNone) {
  for (const int64_t T : {1, 0}) {
    for (const bool write_time : {false, true}) {
      Problem p({.Tq = T, .Tk = T}, SlotControl::exp, SlotNormalizer::read_time, true);
      p.context.write_time = write_time;
      p.carry();
      expect_as_on_the_cpu(p, std::to_string(T) + " tokens");
    }
  }
}

// Logits far beyond what exp can hold, rising and falling.
TEST(CudaSlotAttentionSizes, ExtremeLogits) {
  for (const bool causal : {true, false}) {
    Problem p(Sizes{}, SlotControl::exp, SlotNormalizer::read_time, causal);
    for (int64_t i = 0; i < p.logits.elements(); ++i) {
      const int64_t t = i / (p.s.H * p.s.N) % p.s.Tk;
      p.logits.data<double>()[i] += i % 2 == 0 ? 60.0 * t : -60.0 * t;
    }
    const std::vector<Tensor> expected = results(p, DType::f32, DType::f64, Device{});
    const std::vector<Tensor> got = results(p, DType::f32, DType::f32, kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_CLOSE(got[i].to(DType::f64), expected[i].to(DType::f64), 1e-5);
    }
  }
}

TEST(CudaSlotAttentionSizes, SameBitsInEveryRun) {
  for (const bool causal : {true, false}) {
    Problem p(Sizes{}, SlotControl::sigmoid, SlotNormalizer::read_time, causal);
    p.cut();
    const std::vector<Tensor> once = results(p, DType::bf16, DType::bf16, kGpu);
    const std::vector<Tensor> again = results(p, DType::bf16, DType::bf16, kGpu);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(test::same_bits(once[i], again[i]));
  }
}

TEST(CudaSlotAttentionSizes, RefusesWhatItCannotDo) {
  const Variable wide(Tensor::zeros({1, 4, 2, 3}, DType::f64, kGpu));
  EXPECT_NE(test::message_of<Error>([&] {
              slot_attention_causal({wide, wide, wide, wide}, {}, {});
            }).find("f32 and bf16"),
            std::string::npos);
  const Variable x(Tensor::zeros({1, 4, 2, 3}, DType::f32, kGpu));
  const Variable shorter(Tensor::zeros({1, 3, 2, 3}, DType::f32, kGpu));
  const Variable host(Tensor::zeros({1, 4, 2, 3}));
  EXPECT_THROW(slot_attention_causal({x, x, host, x}, {}, {}), Error);
  EXPECT_THROW(slot_attention_causal({x, shorter, shorter, shorter}, {}, {}), Error);
  EXPECT_THROW(slot_attention_causal({x, x, shorter, x}, {}, {}), Error);
}

}  // namespace
}  // namespace linnet
