// A random problem of listed attention, for its tests on the CPU and on devices.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/primitives/listed_attention/listed_attention.h"
#include "tests/tensor_helpers.h"

namespace linnet::test {

struct ListedSizes {
  int64_t B = 2, Tq = 11, Tk = 9, H = 4, G = 2, K = 5, V = 3, length = 6, group = 1;
  int64_t index_rows = 2, index_heads = 4;
};

// Host tensors; sequences in f64.
struct ListedCase {
  ListedSizes s;
  ListedAttentionContext context;
  Tensor q, k, v, bias, dy, dlse;

  explicit ListedCase(const ListedSizes& sizes = {}) : s(sizes) {
    q = random_tensor({s.B, s.Tq, s.H, s.K}, "q");
    k = random_tensor({s.B, s.Tk, s.G, s.K}, "k");
    v = random_tensor({s.B, s.Tk, s.G, s.V}, "v");
    dy = random_tensor({s.B, s.Tq, s.H, s.V}, "dy");
    dlse = random_tensor({s.B, s.Tq, s.H}, "dlse");
    context.options.scale = 0.6;
    context.options.group = s.group;
    const int64_t lists = (s.Tq + s.group - 1) / s.group;
    context.index = Tensor::empty({s.index_rows, s.index_heads, lists, s.length}, DType::i32);
    const RandomKey key = RandomKey{4, 0, 0}.at("index");
    for (int64_t i = 0; i < context.index.elements(); ++i) {
      // Empty places, keys more than once, and a list without any key.
      const auto drawn = static_cast<int32_t>(key.below(static_cast<uint64_t>(i), s.Tk + 2)) - 2;
      const bool empty = i / s.length % lists == 1;
      context.index.data<int32_t>()[i] = empty ? -1 : std::max(drawn, -1);
    }
  }
  // The first place of every second query is excluded. Where each row has a bias of its own, that
  // of queries which are masked already is NaN.
  void add_bias(int64_t rows, int64_t heads) {
    bias = random_tensor({rows, heads, s.Tq, s.length}, "bias");
    for (int64_t i = 0; i < bias.elements(); i += 2 * s.length) {
      bias.data<double>()[i] = -std::numeric_limits<double>::infinity();
    }
    if (!context.query_mask.defined() || rows != s.B) return;
    for (int64_t i = 0; i < bias.elements(); ++i) {
      const int64_t row = i / s.length, query = row / (heads * s.Tq) * s.Tq + row % s.Tq;
      if (context.query_mask.data<uint8_t>()[query] == 0) bias.data<double>()[i] = std::nan("");
    }
  }
  // Every third query and fourth key is masked and holds NaN.
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
    context.query_mask = punch(s.Tq, 3, {q, dy, dlse});
    context.key_mask = punch(s.Tk, 4, {k, v});
  }
  void drop(double probability) {
    context.options.dropout = probability;
    context.options.dropout_key = RandomKey{3, 4, 5};
    context.place.time_offset = 7;
    std::vector<int64_t> examples(static_cast<size_t>(s.B));
    for (int64_t b = 0; b < s.B; ++b) examples[b] = 17 - 3 * b;
    context.place.examples = Tensor::from(examples, {s.B});
  }

  // y, log_sum_exp and the gradients of q, k, v and bias on the host; inputs are first rounded.
  std::vector<Tensor> results(DType rounded, DType dtype, Device device = {}) const {
    std::vector<Variable> in;
    for (const Tensor* x : {&q, &k, &v, &bias}) {
      in.push_back(x->defined() ? Variable(x->to(rounded).to(dtype).to(device), true) : Variable());
    }
    ListedAttentionContext at = context;
    for (Tensor* x : {&at.index, &at.query_mask, &at.key_mask, &at.place.examples}) {
      if (x->defined()) *x = x->to(device);
    }
    const auto [y, lse] = listed_attention({in[0], in[1], in[2], in[3]}, at);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(lse.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_EQ(y.value().device(), device);
    backward({y, lse}, {dy.to(rounded).to(dtype).to(device), dlse.to(lse.dtype()).to(device)});
    std::vector<Tensor> out{y.value().to(Device{}), lse.value().to(Device{})};
    for (const Variable& x : in) {
      if (x.defined()) out.push_back(x.grad().to(Device{}));
    }
    return out;
  }
};

// results() in plain bf16 arithmetic, which takes y . dy of y as it was stored: what the
// rounding of y adds to it the gradients of log-sum-exps lack.
inline std::vector<Tensor> plain_results(ListedCase p) {
  std::vector<Tensor> plain = p.results(DType::bf16, DType::bf16);
  const std::vector<double> exact = p.results(DType::bf16, DType::f64)[0].to_vector<double>(),
                            stored = plain[0].to_vector<double>(),
                            dy = p.dy.to(DType::bf16).to_vector<double>();
  p.dlse = p.dlse.clone();
  for (size_t i = 0; i < exact.size(); ++i) {
    if (stored[i] == exact[i]) continue;
    p.dlse.data<double>()[i / static_cast<size_t>(p.s.V)] -= (stored[i] - exact[i]) * dy[i];
  }
  const std::vector<Tensor> gradients = p.results(DType::bf16, DType::f64);
  std::copy(gradients.begin() + 2, gradients.end(), plain.begin() + 2);
  return plain;
}

// Where nothing is seen the log-sum-exp is -infinity on both sides; elsewhere 0 takes its place, so
// that the rest can be compared.
inline void drop_infinities(const Tensor& got, const Tensor& expected) {
  for (int64_t i = 0; i < got.elements(); ++i) {
    double& wanted = expected.data<double>()[i];
    float& found = got.data<float>()[i];
    EXPECT_EQ(std::isinf(found), std::isinf(wanted)) << i;
    if (std::isinf(found) && std::isinf(wanted)) found = 0, wanted = 0;
  }
}

}  // namespace linnet::test
