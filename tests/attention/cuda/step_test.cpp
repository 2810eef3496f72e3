// Decoding token by token on the device gives what the CPU computes in double for the whole
// sequence, gradients through all steps included.
#include <functional>

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/block_attention/carry.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "tests/attention/cuda/step_tokens.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::sequence_of;
using test::token_of;

constexpr int64_t kRows = 2, kTokens = 5;

// y [B,T,...] of sequences [B,T,...] and a carried state, whose tensors may be undefined; and the
// state after them.
struct Answer {
  Variable y;
  std::vector<Variable> state;
};
using Call = std::function<Answer(const std::vector<Variable>& sequences,
                                  const std::vector<Variable>& state, const Tensor& mask)>;

struct Problem {
  std::vector<Tensor> sequences, state;  // f64 on the host; sequences may be undefined
  bool masked = false;
  bool carries_tokens = false;  // in the dtype of the sequences
};

// Row 0 lacks token 1, row 1 the last.
Tensor mask() {
  return Tensor::from(std::vector<uint8_t>{1, 0, 1, 1, 1, 1, 1, 1, 1, 0}, {kRows, kTokens});
}

Tensor seed_of(const Tensor& y, const std::string& name) {
  return random_tensor(y.shape(), name).to(DType::bf16);
}

// Those of the state's tensors that are compared and have gradients. Carried tokens hold what the
// sequence holds, NaN behind masks included.
std::vector<Variable> compared(const Problem& p, const std::vector<Variable>& state) {
  std::vector<Variable> found;
  if (p.carries_tokens) return found;
  for (const Variable& x : state) {
    if (x.defined() && is_floating(x.dtype())) found.push_back(x);
  }
  return found;
}

// y, the state after it, the gradients of the sequences and of the carried state: of one call on
// the CPU, and of one call a token.
std::vector<Tensor> at_once(const Problem& p, const Call& call) {
  std::vector<Variable> sequences, state;
  for (const Tensor& x : p.sequences)
    sequences.push_back(x.defined() ? Variable(x, true) : Variable());
  for (const Tensor& x : p.state) state.emplace_back(x, true);
  const Answer answer = call(sequences, state, p.masked ? mask() : Tensor());
  std::vector<Variable> outputs = compared(p, answer.state);
  outputs.insert(outputs.begin(), answer.y);
  std::vector<Tensor> found, seeds;
  for (const Variable& x : outputs) {
    found.push_back(x.value());
    seeds.push_back(seed_of(x.value(), std::to_string(seeds.size())).to(x.dtype()));
  }
  backward(outputs, seeds);
  for (const Variable& x : sequences) {
    if (x.defined()) found.push_back(x.grad());
  }
  for (const Variable& x : state) found.push_back(x.grad());
  return found;
}
std::vector<Tensor> by_steps(const Problem& p, const Call& call, DType dtype, Device device) {
  std::vector<std::vector<Variable>> tokens(p.sequences.size());
  std::vector<Variable> carried, outputs;
  for (const Tensor& x : p.state) {
    const DType sums = x.shape().rank() == 3 ? DType::f64 : DType::f32;
    carried.emplace_back(x.to(p.carries_tokens ? dtype : sums).to(device), true);
  }
  std::vector<Variable> state = carried;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<Variable> now;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Tensor& x = p.sequences[i];
      if (x.defined()) tokens[i].emplace_back(token_of(x, t).to(dtype).to(device), true);
      now.push_back(x.defined() ? tokens[i].back() : Variable());
    }
    Answer answer = call(now, state, p.masked ? token_of(mask(), t).to(device) : Tensor());
    outputs.push_back(answer.y);
    state = std::move(answer.state);
  }
  std::vector<Tensor> ys, seeds;
  for (const Variable& y : outputs) ys.push_back(y.value());
  std::vector<Tensor> found{sequence_of(ys)};
  const Tensor all_seeds = seed_of(found.front(), "0");
  for (int64_t t = 0; t < kTokens; ++t) {
    seeds.push_back(token_of(all_seeds, t).to(outputs[static_cast<size_t>(t)].dtype()).to(device));
  }
  int number = 1;
  for (const Variable& x : compared(p, state)) {
    found.push_back(x.value().to(Device{}));
    outputs.push_back(x);
    seeds.push_back(seed_of(x.value(), std::to_string(number++)).to(x.dtype()).to(device));
  }
  backward(outputs, seeds);
  for (const std::vector<Variable>& sequence : tokens) {
    std::vector<Tensor> gradients;
    for (const Variable& x : sequence) gradients.push_back(x.grad());
    if (!gradients.empty()) found.push_back(sequence_of(gradients));
  }
  for (const Variable& x : carried) found.push_back(x.grad().to(Device{}));
  return found;
}

// Sequences as a dtype holds them, with NaN behind the mask.
Problem rounded(Problem p, DType dtype) {
  for (Tensor& x : p.sequences) {
    if (!x.defined()) continue;
    x = x.to(dtype).to(DType::f64);
    const int64_t width = x.elements() / (kRows * kTokens);
    for (int64_t i = 0; p.masked && i < x.elements(); ++i) {
      if (mask().data<uint8_t>()[i / width] == 0) x.data<double>()[i] = std::nan("");
    }
  }
  // Memories and sums are f32 whatever tokens are; carried tokens are as the others.
  for (Tensor& x : p.state) x = x.to(p.carries_tokens ? dtype : DType::f32).to(DType::f64);
  return p;
}

// x is that far from 0 everywhere.
void make_extreme(const Tensor& x, double size) {
  for (int64_t i = 0; i < x.elements(); ++i) {
    double& number = x.data<double>()[i];
    number = number > 0 ? size : -size;
  }
}

void expect_that_of_the_sequence(const std::string& name, const Problem& problem,
                                 const Call& call) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p = rounded(problem, dtype);
    const std::vector<Tensor> expected = at_once(p, call);
    const std::vector<Tensor> got = by_steps(p, call, dtype, kGpu);
    test::expect_close_in(
        dtype, got, expected, 5e-6, [&] { return by_steps(p, call, dtype, Device{}); },
        concat(name, ", ", name_of(dtype)));
  }
}

Tensor positive(const Shape& shape, const char* name) {
  const Tensor x = random_tensor(shape, name);
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<double>()[i] = 0.1 + std::abs(x.data<double>()[i]);
  }
  return x;
}

Call linear_call(const LinearAttentionOptions& options) {
  return [options](const std::vector<Variable>& in, const std::vector<Variable>& state,
                   const Tensor& mask) {
    LinearAttentionContext context;
    context.options = options;
    context.query_mask = context.key_mask = mask;
    LinearAttentionSums sums;
    if (!state.empty()) sums = {state[0], state[1]};
    const LinearAttentionResult result =
        linear_attention_causal({in[0], in[1], in[2], in[3], in[4], in[5]}, context, sums);
    return Answer{result.y, {result.state.memory, result.state.mass}};
  };
}

// q, k, v, both proportions, log-decay; the memory and its mass.
Problem linear_problem(int64_t H, int64_t G, int64_t K, int64_t V, bool reweighted, bool decays) {
  const int64_t m = reweighted ? 2 * K : K;
  Problem p{{random_tensor({kRows, kTokens, H, K}, "q"),
             random_tensor({kRows, kTokens, G, K}, "k"),
             random_tensor({kRows, kTokens, G, V}, "v"),
             {},
             {},
             {}},
            {random_tensor({kRows, G, m, V}, "memory"), positive({kRows, G, m}, "mass")}};
  if (reweighted) {
    p.sequences[3] = random_tensor({kRows, kTokens, H}, "p");
    p.sequences[4] = random_tensor({kRows, kTokens, G}, "r");
    for (size_t i : {3, 4}) {
      for (int64_t j = 0; j < p.sequences[i].elements(); ++j) {
        double& x = p.sequences[i].data<double>()[j];
        x = 0.5 + 0.5 * std::sin(x);
      }
    }
  }
  if (decays) {
    p.sequences[5] = positive({kRows, kTokens, G}, "decay");
    for (int64_t j = 0; j < p.sequences[5].elements(); ++j) p.sequences[5].data<double>()[j] *= -1;
  }
  return p;
}

TEST(CudaStep, LinearAttention) {
  Problem p = linear_problem(4, 2, 6, 37, false, false);
  p.masked = true;
  expect_that_of_the_sequence("shared states", p, linear_call({}));
  p = linear_problem(2, 2, 5, 7, true, false);
  expect_that_of_the_sequence("proportions", p,
                              linear_call({FeatureMap::relu, 0.7, Normalizer::add, 0.3}));
  p = linear_problem(2, 1, 8, 8, false, true);
  p.masked = true;
  expect_that_of_the_sequence("decay", p,
                              linear_call({FeatureMap::identity, 0.5, Normalizer::none, 0}));
  p = linear_problem(1, 1, 40, 3, false, false);
  p.state.clear();
  expect_that_of_the_sequence("from the start", p, linear_call({}));
  for (size_t i = 0; i < 2; ++i) make_extreme(p.sequences[i], 80);
  expect_that_of_the_sequence("logits of 80", p, linear_call({}));
  for (size_t i = 0; i < 2; ++i) p.sequences[i].fill(-80);
  expect_that_of_the_sequence("features of almost zero", p, linear_call({}));
}

Call slot_call(const SlotAttentionOptions& options) {
  return [options](const std::vector<Variable>& in, const std::vector<Variable>& state,
                   const Tensor& mask) {
    SlotAttentionContext context;
    context.options = options;
    context.query_mask = context.key_mask = mask;
    SlotMemory memory;
    if (!state.empty()) memory = {state[0], state[1], state[2]};
    const SlotAttentionResult result =
        slot_attention_causal({in[0], in[1], in[2], in[3]}, context, memory);
    return Answer{result.o, {result.state.keys, result.state.values, result.state.mass}};
  };
}

TEST(CudaStep, SlotAttention) {
  constexpr int64_t kHeads = 2, kSlots = 11, kK = 6, kV = 35;
  const auto problem = [&](bool carries, bool masked) {
    Problem p{{random_tensor({kRows, kTokens, kHeads, kK}, "q"),
               random_tensor({kRows, kTokens, kHeads, kK}, "k"),
               random_tensor({kRows, kTokens, kHeads, kV}, "v"),
               random_tensor({kRows, kTokens, kHeads, kSlots}, "logits")},
              {random_tensor({kRows, kHeads, kSlots, kK}, "keys"),
               random_tensor({kRows, kHeads, kSlots, kV}, "values"),
               positive({kRows, kHeads, kSlots}, "mass")}};
    if (!carries) p.state.clear();
    p.masked = masked;
    return p;
  };
  SlotAttentionOptions options;
  options.scale = 0.7;
  options.floor = 0.3;
  expect_that_of_the_sequence("exp, from the start", problem(false, true), slot_call(options));
  expect_that_of_the_sequence("exp", problem(true, false), slot_call(options));
  const Problem extreme = problem(true, true);
  make_extreme(extreme.sequences[3], 80);
  expect_that_of_the_sequence("logits of 80", extreme, slot_call(options));
  options.control = SlotControl::sigmoid;
  expect_that_of_the_sequence("sigmoid", problem(true, true), slot_call(options));
  options.control = SlotControl::relu;
  options.mask_empty = false;
  expect_that_of_the_sequence("relu", problem(false, true), slot_call(options));
}

// Its counts are not differentiable; the sequence begins in the middle of a window.
Call memory_call(const OrthogonalMemoryOptions& options, bool carries) {
  return [options, carries](const std::vector<Variable>& in, const std::vector<Variable>& state,
                            const Tensor& mask) {
    const Device device = in[0].value().device();
    OrthogonalMemoryContext context;
    context.options = options;
    context.query_mask = context.code_mask = mask;
    OrthogonalMemoryCarry carry;
    int64_t seen = 0;
    if (!state.empty()) {
      carry = {state[0], state[1],
               Tensor::from(std::vector<int64_t>{4, 1, 4, 2}, {kRows, 2}).to(device)};
      if (state.size() > 2) carry.counts = state[2].value();
    }
    if (state.size() > 3) seen = state[3].size(0);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < kRows * in[0].size(1); ++i) {
      const int64_t t = i % in[0].size(1) + seen;
      positions.push_back(static_cast<int32_t>(t + (carries ? 2 : 0)));
    }
    context.positions = test::ids(positions, {kRows, in[0].size(1)}).to(device);
    const Variable basis(random_tensor({2, 7, 37}, "basis")
                             .to(in[0].dtype() == DType::f64 ? DType::f64 : DType::f32)
                             .to(device));
    const OrthogonalMemoryResult result = orthogonal_memory(in[0], in[1], basis, carry, context);
    const Variable length(Tensor::zeros({seen + in[0].size(1)}, DType::i32));
    return Answer{
        result.y,
        {result.carry.completed, result.carry.partial, Variable(result.carry.counts), length}};
  };
}

TEST(CudaStep, OrthogonalMemory) {
  const auto problem = [](bool carries, bool masked) {
    Problem p{
        {random_tensor({kRows, kTokens, 2, 37}, "q"), random_tensor({kRows, kTokens, 2, 37}, "f")},
        {random_tensor({kRows, 2, 7}, "completed"), random_tensor({kRows, 2, 7}, "partial")}};
    if (!carries) p.state.clear();
    p.masked = masked;
    return p;
  };
  const OrthogonalMemoryOptions windows{MemoryScope::completed_windows, 3, 0.8, false};
  const OrthogonalMemoryOptions prefix{MemoryScope::prefix, 0, 0.8, false};
  expect_that_of_the_sequence("windows", problem(true, true), memory_call(windows, true));
  expect_that_of_the_sequence("windows from the start", problem(false, false),
                              memory_call(windows, false));
  expect_that_of_the_sequence("prefix", problem(true, true), memory_call(prefix, true));
  const Problem empty = problem(false, true);
  empty.sequences[1].fill(0);
  expect_that_of_the_sequence("codes of zero", empty, memory_call(prefix, false));
}

// Keys and values are carried with their mask, which has no gradient.
Call attention_call(const BlockAttentionOptions& options, int64_t bias_heads) {
  return [options, bias_heads](const std::vector<Variable>& in, const std::vector<Variable>& state,
                               const Tensor& mask) {
    const Device device = in[0].value().device();
    const DType sums = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
    BlockAttentionContext context;
    context.options = options;
    context.options.causal = true;
    context.query_mask = context.key_mask = mask;
    BlockAttentionVariables variables{in[0], in[1], in[2], {}, {}, {}};
    int64_t P = 0;
    if (!state.empty()) {
      variables.past_k = state[0];
      variables.past_v = state[1];
      P = state[0].size(1);
      if (state.size() > 2) context.past_mask = state[2].value();
    }
    context.place.time_offset = P;
    if (bias_heads > 0) {
      const Tensor table = random_tensor({bias_heads, 400}, "bias").to(sums);
      variables.bias = Variable(table.to(device));
      context.bias_origin = 399;
    }
    const Variable y = block_attention(variables, context);
    const Tensor after =
        carry_mask(context.past_mask, mask, {}, kRows, P, in[0].size(1), -1, device);
    return Answer{y,
                  {carry_tokens(variables.past_k, in[1], -1),
                   carry_tokens(variables.past_v, in[2], -1), Variable(after)}};
  };
}

TEST(CudaStep, BlockAttention) {
  const auto problem = [](int64_t past, bool masked) {
    Problem p{
        {random_tensor({kRows, kTokens, 4, 6}, "q"), random_tensor({kRows, kTokens, 2, 6}, "k"),
         random_tensor({kRows, kTokens, 2, 37}, "v")},
        {random_tensor({kRows, past, 2, 6}, "past k"),
         random_tensor({kRows, past, 2, 37}, "past v")}};
    if (past == 0) p.state.clear();
    p.masked = masked;
    p.carries_tokens = true;
    return p;
  };
  BlockAttentionOptions options;
  options.scale = 0.7;
  // More keys than the warps of a block take at a time.
  expect_that_of_the_sequence("all keys", problem(300, true), attention_call(options, 4));
  expect_that_of_the_sequence("from the start", problem(0, true), attention_call(options, 0));
  options.pattern = BlockPattern::band;
  options.left = 40;
  expect_that_of_the_sequence("a window", problem(45, false), attention_call(options, 1));
  options.weights = BlockWeights::relu_squared;
  expect_that_of_the_sequence("not normalised", problem(45, true), attention_call(options, 0));
  const Problem extreme = problem(45, true);
  for (const Tensor& x : {extreme.sequences[0], extreme.sequences[1], extreme.state[0]}) {
    make_extreme(x, 1);
  }
  options.weights = BlockWeights::softmax;
  options.scale = 16;  // times -6, -4, ... or 6
  expect_that_of_the_sequence("logits of 96", extreme, attention_call(options, 0));
}

}  // namespace
}  // namespace linnet
