// A random attention problem with all its arrays, for the tests of block attention.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "attention/primitives/block_attention/cpu.h"
#include "core/random.h"
#include "tests/worst.h"

namespace linnet::test {

template <typename T>
double worst_difference(const std::vector<T>& got, const std::vector<double>& expected) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    test::keep_worst(worst, error);
  }
  return worst;
}

struct AttentionShape {
  int64_t B = 2, Tq = 5, Tk = 5, H = 2, G = 2, K = 3, V = 4, P = 0;
};

// Owns inputs, outputs and gradients of one problem in precision T. Values depend only on the
// shape, so that cases in float and double agree up to rounding.
template <typename T>
struct AttentionCase {
  AttentionShape shape;
  std::vector<T> q, k, v, past_k, past_v, bias, y, log_sum_exp, dy;
  std::vector<T> dq, dk, dv, dpast_k, dpast_v, dbias;
  std::vector<uint8_t> query_mask, key_mask, past_mask;
  BlockAttentionInputs<T> in;
  BlockAttentionOptions options;

  explicit AttentionCase(const AttentionShape& s) : shape(s) {
    options.scale = 0.7;
    q = draws(s.B * s.Tq * s.H * s.K, 1);
    k = draws(s.B * s.Tk * s.G * s.K, 2);
    v = draws(s.B * s.Tk * s.G * s.V, 3);
    past_k = draws(s.B * s.P * s.G * s.K, 4);
    past_v = draws(s.B * s.P * s.G * s.V, 5);
    dy = draws(s.B * s.Tq * s.H * s.V, 6);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    y.assign(dy.size(), nan);
    log_sum_exp.assign(s.B * s.Tq * s.H, nan);
    dq.assign(q.size(), nan);
    dk.assign(k.size(), nan);
    dv.assign(v.size(), nan);
    dpast_k.assign(past_k.size(), nan);
    dpast_v.assign(past_v.size(), nan);
  }
  AttentionCase(const AttentionCase&) = delete;

  static std::vector<T> draws(int64_t n, uint64_t site) {
    std::vector<T> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      values[i] = static_cast<T>(static_cast<float>(RandomKey{7, 0, site}.normal(i)));
    }
    return values;
  }
  // Self-attention; segments split rows, start positions count earlier tokens.
  void self(const std::vector<int32_t>& segments = {}, const std::vector<int64_t>& starts = {}) {
    in.spans = make_spans(segments.empty() ? nullptr : segments.data(), shape.B, shape.Tq,
                          shape.P > 0, starts.empty() ? nullptr : starts.data());
  }
  void add_bias(int64_t heads, int64_t origin, int64_t count) {
    bias = draws(heads * count, 8);
    dbias.assign(bias.size(), std::numeric_limits<T>::quiet_NaN());
    in.bias_heads = heads;
    in.bias_origin = origin;
    in.bias_count = count;
  }
  // Every third token is masked and holds NaN.
  void add_masks() {
    const auto punch = [](std::vector<uint8_t>& mask, int64_t tokens, int64_t phase) {
      mask.assign(static_cast<size_t>(tokens), 1);
      for (int64_t i = phase; i < tokens; i += 3) mask[i] = 0;
    };
    punch(key_mask, shape.B * shape.Tk, 1);
    punch(past_mask, shape.B * shape.P, 2);
    query_mask = key_mask;
    if (shape.Tq != shape.Tk) punch(query_mask, shape.B * shape.Tq, 0);
  }
  void poison() {
    const auto fill = [](const std::vector<uint8_t>& mask, std::vector<T>& values) {
      const size_t width = mask.empty() ? 0 : values.size() / mask.size();
      for (size_t i = 0; i < mask.size() * width; ++i) {
        if (mask[i / width] == 0) values[i] = std::numeric_limits<T>::quiet_NaN();
      }
    };
    fill(query_mask, q);
    fill(query_mask, dy);
    fill(key_mask, k);
    fill(key_mask, v);
    fill(past_mask, past_k);
    fill(past_mask, past_v);
  }
  BlockAttentionInputs<T>& bind() {
    const auto& s = shape;
    in.q = SequenceView<T>(q.data(), s.B, s.Tq, s.H, s.K);
    in.k = SequenceView<T>(k.data(), s.B, s.Tk, s.G, s.K);
    in.v = SequenceView<T>(v.data(), s.B, s.Tk, s.G, s.V);
    if (s.P > 0) {
      in.past_k = SequenceView<T>(past_k.data(), s.B, s.P, s.G, s.K);
      in.past_v = SequenceView<T>(past_v.data(), s.B, s.P, s.G, s.V);
    }
    in.query_mask = query_mask.empty() ? nullptr : query_mask.data();
    in.key_mask = key_mask.empty() ? nullptr : key_mask.data();
    in.past_mask = past_mask.empty() ? nullptr : past_mask.data();
    in.bias = bias.empty() ? nullptr : bias.data();
    return in;
  }
  SequenceView<T> y_view() { return {y.data(), shape.B, shape.Tq, shape.H, shape.V}; }
  void forward() { block_attention_forward<T>(bind(), options, y_view(), log_sum_exp.data()); }
  void backward() {
    const auto& s = shape;
    BlockAttentionGradients<T> gradients;
    gradients.dq = {dq.data(), s.B, s.Tq, s.H, s.K};
    gradients.dk = {dk.data(), s.B, s.Tk, s.G, s.K};
    gradients.dv = {dv.data(), s.B, s.Tk, s.G, s.V};
    if (s.P > 0) {
      gradients.dpast_k = {dpast_k.data(), s.B, s.P, s.G, s.K};
      gradients.dpast_v = {dpast_v.data(), s.B, s.P, s.G, s.V};
    }
    gradients.dbias = dbias.empty() ? nullptr : dbias.data();
    block_attention_backward<T>(bind(), options, y_view(), log_sum_exp.data(),
                                SequenceView<T>(dy.data(), s.B, s.Tq, s.H, s.V), gradients);
  }
  std::vector<double> reference() requires(std::is_same_v<T, double>) {
    std::vector<double> out(y.size(), std::numeric_limits<double>::quiet_NaN());
    block_attention_reference(bind(), options, {out.data(), shape.B, shape.Tq, shape.H, shape.V});
    return out;
  }
};

}  // namespace linnet::test
