// Problems of block attention, and their results on a device, for the tests of its plain and its
// tensor-core kernels.
#pragma once

#include <cmath>
#include <vector>

#include "attention/primitives/block_attention/block_attention.h"
#include "tests/bf16_tolerance.h"

namespace linnet::test::block_attention_problem {

struct Sizes {
  int64_t B = 2, Tq = 37, Tk = 37, H = 4, G = 2, K = 5, V = 7, P = 0;
};

// Host tensors; sequences in f64.
struct Problem {
  Sizes s;
  BlockAttentionContext context;
  Tensor q, k, v, past_k, past_v, bias, dy;

  explicit Problem(const Sizes& sizes) : s(sizes) {
    q = random_tensor({s.B, s.Tq, s.H, s.K}, "q");
    k = random_tensor({s.B, s.Tk, s.G, s.K}, "k");
    v = random_tensor({s.B, s.Tk, s.G, s.V}, "v");
    dy = random_tensor({s.B, s.Tq, s.H, s.V}, "dy");
    if (s.P > 0) {
      past_k = random_tensor({s.B, s.P, s.G, s.K}, "past_k");
      past_v = random_tensor({s.B, s.P, s.G, s.V}, "past_v");
    }
    context.options.scale = 0.6;
  }
  void band(bool causal, int64_t left, int64_t right = 0) {
    context.options.pattern = BlockPattern::band;
    context.options.causal = causal;
    context.options.left = left;
    context.options.right = right;
  }
  void blocks(bool causal, int64_t block) {
    context.options.pattern = BlockPattern::blocks;
    context.options.causal = causal;
    context.options.block = block;
  }
  void add_bias(int64_t heads, int64_t before, int64_t after) {
    bias = random_tensor({heads, before + after + 1}, "bias");
    context.bias_origin = before;
  }
  // Documents of odd lengths; the first of a row continues at `start`.
  void cut(int32_t start) {
    std::vector<int32_t> segments, positions;
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t t = 0; t < s.Tq; ++t) {
        const int64_t first = b == 0 ? (t < 11 ? 0 : t < 12 ? 11 : 12) : (t < 34 ? 0 : 34);
        segments.push_back(static_cast<int32_t>(first + 3 * b));
        positions.push_back(static_cast<int32_t>(t - first) + (first == 0 ? start : 0));
      }
    }
    context.segments = ids(segments, {s.B, s.Tq});
    context.positions = ids(positions, {s.B, s.Tq});
  }
  // Masks of every kind, with NaN behind them.
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
    context.query_mask = punch(s.Tq, 4, {q, dy});
    context.key_mask = punch(s.Tk, 3, {k, v});
    if (s.P > 0) context.past_mask = punch(s.P, 2, {past_k, past_v});
  }
  void drop(double probability) {
    context.options.dropout = probability;
    context.options.dropout_key = RandomKey{3, 4, 5};
    context.place.examples = Tensor::from(std::vector<int64_t>(s.B, 17), {s.B});
  }
};

inline BlockAttentionContext context_on(const Problem& p, Device device) {
  BlockAttentionContext context = p.context;
  for (Tensor* x : {&context.query_mask, &context.key_mask, &context.past_mask, &context.segments,
                    &context.positions, &context.place.examples, &context.times}) {
    if (x->defined()) *x = x->to(device);
  }
  return context;
}

// y, then the gradients of all defined inputs, on the host.
inline std::vector<Tensor> results(const Problem& p, DType rounded, DType dtype, Device device) {
  std::vector<Variable> in;
  for (const Tensor* x : {&p.q, &p.k, &p.v, &p.past_k, &p.past_v, &p.bias}) {
    in.push_back(x->defined() ? Variable(x->to(rounded).to(dtype).to(device), true) : Variable());
  }
  const Variable y =
      block_attention({in[0], in[1], in[2], in[3], in[4], in[5]}, context_on(p, device));
  EXPECT_EQ(y.dtype(), dtype);
  EXPECT_EQ(y.value().device(), device);
  backward({y}, {p.dy.to(rounded).to(dtype).to(device)});
  std::vector<Tensor> out{y.value().to(Device{})};
  for (const Variable& x : in) {
    if (x.defined()) out.push_back(x.grad().to(Device{}));
  }
  return out;
}

// The values of carried keys and keys, whose channels are one for every key: y is then the weights.
inline Problem of_weights(Problem p) {
  const int64_t N = p.s.P + p.s.Tk;
  const auto one_hot = [&](int64_t tokens, int64_t first) {
    const Tensor x = Tensor::zeros({p.s.B, tokens, p.s.G, N}, DType::f64);
    for (int64_t i = 0; i < p.s.B * tokens * p.s.G; ++i) {
      x.data<double>()[i * N + first + i / p.s.G % tokens] = 1;
    }
    return x;
  };
  p.v = one_hot(p.s.Tk, p.s.P);
  if (p.s.P > 0) p.past_v = one_hot(p.s.P, 0);
  p.dy = Tensor::zeros({p.s.B, p.s.Tq, p.s.H, N}, DType::f64);
  return p;
}

// results() in plain bf16 arithmetic. Softmax and squared ReLU keep between their steps,
// in bf16: y, of which backward takes y . dy, the weights and the gradients of logits.
inline std::vector<Tensor> plain_results(const Problem& p) {
  std::vector<Tensor> plain = results(p, DType::bf16, DType::bf16, Device{});
  const bool softmax = p.context.options.weights == BlockWeights::softmax;
  if (!softmax && p.context.options.weights != BlockWeights::relu_squared) return plain;
  Problem by_key = of_weights(p);
  const auto weights_of = [&] {
    return results(by_key, DType::bf16, DType::f64, Device{})[0].to_vector<double>();
  };
  const std::vector<double> dropped = weights_of();
  by_key.context.options.dropout = 0;
  const std::vector<double> weights = weights_of();
  const auto numbers = [](const Tensor& x) { return x.to(DType::bf16).to_vector<double>(); };
  const std::vector<double> y = numbers(plain[0]), dy = numbers(p.dy), v = numbers(p.v),
                            past_v = p.s.P > 0 ? numbers(p.past_v) : std::vector<double>();
  const int64_t N = p.s.P + p.s.Tk, V = p.s.V;
  for (int64_t i = 0; i < p.s.B * p.s.Tq * p.s.H; ++i) {
    const int64_t b = i / (p.s.Tq * p.s.H), g = i % p.s.H / (p.s.H / p.s.G);
    const auto dot_dy = [&](const std::vector<double>& x, int64_t row) {
      double sum = 0;
      for (int64_t c = 0; c < V; ++c) {
        sum += x[static_cast<size_t>(row * V + c)] * dy[static_cast<size_t>(i * V + c)];
      }
      return sum;
    };
    for (int64_t j = 0; j < N; ++j) {
      const double weight = weights[static_cast<size_t>(i * N + j)];
      if (weight == 0) continue;
      const bool carried = j < p.s.P;
      const int64_t row =
          carried ? (b * p.s.P + j) * p.s.G + g : (b * p.s.Tk + j - p.s.P) * p.s.G + g;
      const double kept = dropped[static_cast<size_t>(i * N + j)] / weight;
      const double dweight = kept == 0 ? 0 : kept * dot_dy(carried ? past_v : v, row);
      const auto stored = static_cast<double>(static_cast<float>(bf16(static_cast<float>(weight))));
      by_key.dy.data<double>()[i * N + j] =
          softmax ? stored * (dweight - dot_dy(y, i)) : 2 * std::sqrt(stored) * dweight;
    }
  }
  // The gradients with respect to the logits themselves.
  by_key.context.options.weights = BlockWeights::identity;
  const std::vector<Tensor> gradients = results(by_key, DType::bf16, DType::f64, Device{});
  plain[1] = gradients[1];
  plain[2] = gradients[2];
  if (p.s.P > 0) plain[4] = gradients[4];
  if (p.bias.defined()) plain.back() = gradients.back();
  return plain;
}

}  // namespace linnet::test::block_attention_problem
