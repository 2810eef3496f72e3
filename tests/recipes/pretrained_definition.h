// For tests: hidden states of BERT, RoBERTa and GPT-2 in plain loops, in double, from the tensors
// of their files by their own names. Sources: Devlin et al. 2019, Liu et al. 2019, Radford et al.
// 2019, and the layouts that their published code writes.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"

namespace linnet::test {

using Vectors = std::vector<std::vector<double>>;  // [T][E]

struct NamedValues {
  std::map<std::string, std::vector<double>> tensors;
  const std::vector<double>& at(const std::string& name) const { return tensors.at(name); }
};

// y = W x + b; W is [out, in], or [in, out] where `transposed`.
inline std::vector<double> affine(const std::vector<double>& w, const std::vector<double>& b,
                                  const std::vector<double>& x, bool transposed = false) {
  const size_t out = b.size(), in = x.size();
  std::vector<double> y = b;
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) y[o] += (transposed ? w[i * out + o] : w[o * in + i]) * x[i];
  }
  return y;
}

inline std::vector<double> layer_norm(const std::vector<double>& x, const std::vector<double>& gain,
                                      const std::vector<double>& bias, double epsilon) {
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = gain[i] * (x[i] - mean) / std::sqrt(variance + epsilon) + bias[i];
  }
  return y;
}

inline double gelu_erf(double x) {
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}
inline double gelu_new(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Softmax attention of token t over the keys that `sees` allows: [E] of q[t], k, v.
template <typename Sees>
std::vector<double> attended(const Vectors& q, const Vectors& k, const Vectors& v, size_t t,
                             size_t heads, const Sees& sees) {
  const size_t width = q[t].size(), head = width / heads;
  std::vector<double> y(width, 0);
  for (size_t h = 0; h < heads; ++h) {
    double sum = 0;
    std::vector<double> weight(k.size(), 0);
    for (size_t s = 0; s < k.size(); ++s) {
      if (!sees(s)) continue;
      double score = 0;
      for (size_t c = h * head; c < (h + 1) * head; ++c) score += q[t][c] * k[s][c];
      weight[s] = std::exp(score / std::sqrt(static_cast<double>(head)));
      sum += weight[s];
    }
    for (size_t s = 0; s < k.size(); ++s) {
      for (size_t c = h * head; c < (h + 1) * head; ++c) y[c] += weight[s] / sum * v[s][c];
    }
  }
  return y;
}

inline std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline std::vector<double> row(const std::vector<double>& table, size_t index, size_t width) {
  const auto begin = table.begin() + static_cast<int64_t>(index * width);
  return {begin, begin + static_cast<int64_t>(width)};
}

struct DefinedModel {
  size_t layers, width, heads;
  double epsilon;
  size_t position_offset = 0;
};

// The vectors after the last block; `valid` tokens are seen, `prefix` stands before each name.
inline Vectors bert_hidden(const NamedValues& in, const std::string& prefix,
                           const DefinedModel& model, const std::vector<int32_t>& ids,
                           const std::vector<int32_t>& types, size_t valid) {
  const auto at = [&](const std::string& name) -> const std::vector<double>& {
    return in.at(prefix + name);
  };
  const auto norm = [&](const std::string& name, const std::vector<double>& x) {
    return layer_norm(x, at(name + ".weight"), at(name + ".bias"), model.epsilon);
  };
  const auto dense = [&](const std::string& name, const std::vector<double>& x) {
    return affine(at(name + ".weight"), at(name + ".bias"), x);
  };
  Vectors x;
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto of = [&](const char* table, size_t index) {
      return row(at(concat("embeddings.", table, "_embeddings.weight")), index, model.width);
    };
    x.push_back(
        norm("embeddings.LayerNorm", plus(plus(of("word", static_cast<size_t>(ids[t])),
                                               of("position", t + model.position_offset)),
                                          of("token_type", static_cast<size_t>(types[t])))));
  }
  for (size_t layer = 0; layer < model.layers; ++layer) {
    const std::string name = concat("encoder.layer.", layer, ".");
    Vectors q, k, v, next;
    for (const auto& each : x) {
      q.push_back(dense(name + "attention.self.query", each));
      k.push_back(dense(name + "attention.self.key", each));
      v.push_back(dense(name + "attention.self.value", each));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const auto mixed = attended(q, k, v, t, model.heads, [&](size_t s) { return s < valid; });
      const auto middle = norm(name + "attention.output.LayerNorm",
                               plus(dense(name + "attention.output.dense", mixed), x[t]));
      std::vector<double> hidden = dense(name + "intermediate.dense", middle);
      for (double& h : hidden) h = gelu_erf(h);
      next.push_back(
          norm(name + "output.LayerNorm", plus(dense(name + "output.dense", hidden), middle)));
    }
    x = next;
  }
  return x;
}

inline Vectors gpt2_hidden(const NamedValues& in, const std::string& prefix,
                           const DefinedModel& model, const std::vector<int32_t>& ids) {
  const auto norm = [&](const std::string& name, const std::vector<double>& x) {
    return layer_norm(x, in.at(prefix + name + ".weight"), in.at(prefix + name + ".bias"),
                      model.epsilon);
  };
  const auto conv = [&](const std::string& name, const std::vector<double>& x) {
    return affine(in.at(prefix + name + ".weight"), in.at(prefix + name + ".bias"), x, true);
  };
  Vectors x;
  for (size_t t = 0; t < ids.size(); ++t) {
    x.push_back(plus(row(in.at(prefix + "wte.weight"), static_cast<size_t>(ids[t]), model.width),
                     row(in.at(prefix + "wpe.weight"), t, model.width)));
  }
  for (size_t layer = 0; layer < model.layers; ++layer) {
    const std::string name = concat("h.", layer, ".");
    Vectors q, k, v;
    for (const auto& each : x) {
      const auto qkv = conv(name + "attn.c_attn", norm(name + "ln_1", each));
      q.push_back(row(qkv, 0, model.width));
      k.push_back(row(qkv, 1, model.width));
      v.push_back(row(qkv, 2, model.width));
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const auto mixed = attended(q, k, v, t, model.heads, [&](size_t s) { return s <= t; });
      x[t] = plus(x[t], conv(name + "attn.c_proj", mixed));
      std::vector<double> hidden = conv(name + "mlp.c_fc", norm(name + "ln_2", x[t]));
      for (double& h : hidden) h = gelu_new(h);
      x[t] = plus(x[t], conv(name + "mlp.c_proj", hidden));
    }
  }
  for (auto& each : x) each = norm("ln_f", each);
  return x;
}

}  // namespace linnet::test
