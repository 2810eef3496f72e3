// The input of a mechanism's literal definition: one sequence on plain host arrays.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "layers/token_mixer.h"

namespace linnet {

// One document of one batch row, all heads. Number is double (the definition) or float (plain
// arithmetic of that precision, by which tolerances are measured). Self-attention has S = T.
template <typename Number>
struct ReferenceSequence {
  Form form = Form::causal;
  int64_t T = 0, S = 0, H = 0, K = 0, V = 0, E = 0;
  // [T,H,K], [S,H,K], [S,H,V]; empty where the mechanism has no such projection.
  std::vector<Number> q, k, v;
  std::vector<Number> x, source;                          // [T,E], [S,E]; source only for cross
  std::vector<uint8_t> key_valid, query_valid;            // [S], [T]
  std::vector<int32_t> positions;                         // [T], inside the document
  int64_t padded_length = 0;                              // of the queries' batch
  int64_t padded_source_length = 0;                       // of the keys' batch
  MixerOptions options;                                   // as the mixer was built
  std::map<std::string, std::vector<Number>> parameters;  // and buffers, by the mixer's own names
  // The mixer's draws and choices in the call, for the whole batch on the host (f64, i32), and the
  // place of this sequence in the batch. Without choices the definition makes its own.
  std::map<std::string, Tensor> draws, choices;
  int64_t row = 0, begin = 0;
  bool stores_bf16 = false;  // between steps a mixer keeps its vectors in bf16

  const Number* query(int64_t i, int64_t h) const {
    return &q[static_cast<size_t>((i * H + h) * K)];
  }
  const Number* key(int64_t j, int64_t h) const { return &k[static_cast<size_t>((j * H + h) * K)]; }
  const Number* value(int64_t j, int64_t h) const {
    return &v[static_cast<size_t>((j * H + h) * V)];
  }
  // x as the mixer stores it.
  Number stored(Number x) const {
    return stores_bf16 ? static_cast<Number>(static_cast<float>(bf16(static_cast<float>(x)))) : x;
  }
  // Whether query i may use key j: valid, and not later where the form is causal.
  bool sees(int64_t i, int64_t j) const {
    return key_valid[static_cast<size_t>(j)] != 0 && (form != Form::causal || j <= i);
  }
  const std::vector<Number>& parameter(const std::string& name) const {
    const auto found = parameters.find(name);
    require(found != parameters.end(), "reference: the mixer has no parameter '", name, "'");
    return found->second;
  }
};

template <typename Number>
Number dot_product(const Number* a, const Number* b, int64_t n) {
  Number total = 0;
  for (int64_t c = 0; c < n; ++c) total += a[c] * b[c];
  return total;
}

// exp(logits) / sum over logits above -infinity; all zero when there are none.
template <typename Number>
std::vector<Number> softmax_of(std::vector<Number> logits) {
  Number largest = -std::numeric_limits<Number>::infinity();
  for (const Number a : logits) largest = std::max(largest, a);
  Number total = 0;
  for (Number& a : logits) {
    a = std::isinf(largest) ? Number{0} : std::exp(a - largest);
    total += a;
  }
  for (Number& a : logits) a = total > 0 ? a / total : Number{0};
  return logits;
}

// y [T,H,V] = softmax(scale q k + bias(h, i, j)) v over the keys that allowed(i, j) admits.
template <typename Number, typename Allowed, typename Bias>
std::vector<Number> softmax_attention_reference(const ReferenceSequence<Number>& s, Number scale,
                                                const Allowed& allowed, const Bias& bias) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      std::vector<Number> logits(static_cast<size_t>(s.S),
                                 -std::numeric_limits<Number>::infinity());
      for (int64_t j = 0; j < s.S; ++j) {
        if (s.sees(i, j) && allowed(i, j)) {
          logits[static_cast<size_t>(j)] =
              scale * dot_product(s.query(i, h), s.key(j, h), s.K) + bias(h, i, j);
        }
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (int64_t j = 0; j < s.S; ++j) {
        const Number weight = weights[static_cast<size_t>(j)];
        if (weight == 0) continue;
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += weight * s.value(j, h)[c];
        }
      }
    }
  }
  return y;
}

// y [T,H,V] = sum_j A_ij v_j / D(sum_j A_ij), with the weight A(h, i, j) and the denominator D.
template <typename Number, typename Weight, typename Denominator>
std::vector<Number> linear_attention_definition(const ReferenceSequence<Number>& s,
                                                const Weight& weight, const Denominator& d) {
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      Number* out = &y[static_cast<size_t>((i * s.H + h) * s.V)];
      Number total = 0;
      for (int64_t j = 0; j < s.S; ++j) {
        if (!s.sees(i, j)) continue;
        const Number a = weight(h, i, j);
        total += a;
        for (int64_t c = 0; c < s.V; ++c) out[c] += a * s.value(j, h)[c];
      }
      for (int64_t c = 0; c < s.V; ++c) out[c] /= d(total);
    }
  }
  return y;
}

}  // namespace linnet
