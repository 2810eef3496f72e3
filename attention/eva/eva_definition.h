// EVA by plain loops: its literal definition.
#pragma once

#include "attention/eva/eva.h"
#include "attention/reference.h"

namespace linnet::eva_definition {

template <typename Number>
using Vector = std::vector<Number>;

template <typename Number>
Vector<Number> mapped(const EvaParams& params, const ReferenceSequence<Number>& s,
                      const Vector<Number>& x, const std::string& name) {
  const Vector<Number>& weight = s.parameter(name + ".weight");
  Vector<Number> y = s.parameter(name + ".bias");
  Number mean = 0, variance = 0;
  const auto width = static_cast<Number>(s.K);
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] += dot_product(x.data(), &weight[o * y.size()], s.K);
    mean += y[o] / width;
  }
  if (!params.norm) return y;
  for (const Number value : y) variance += (value - mean) * (value - mean) / width;
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = (y[o] - mean) / std::sqrt(variance + static_cast<Number>(1e-5)) *
               s.parameter(name + ".norm.gain")[o] +
           s.parameter(name + ".norm.bias")[o];
  }
  return y;
}

// One chunk of one head; none: it has no token and is left out.
template <typename Number>
struct Summary {
  Vector<Number> key, value;
  bool none = false;
};

template <typename Number>
Summary<Number> summary(const EvaParams& params, const ReferenceSequence<Number>& s, int64_t c,
                        int64_t h, Number scale) {
  Vector<Number> mean_q(static_cast<size_t>(s.K), 0), mean_k = mean_q;
  Vector<int64_t> tokens;
  const int64_t more = params.chunk_overlap;
  for (int64_t j = std::max<int64_t>(0, c * params.chunk - more);
       j < std::min(s.T, (c + 1) * params.chunk + more); ++j) {
    if (s.key_valid[static_cast<size_t>(j)] != 0) tokens.push_back(j);
  }
  Summary<Number> made;
  made.value.assign(static_cast<size_t>(s.V), 0);
  made.none = tokens.empty() && !params.compat;
  if (made.none) return made;
  const auto count = static_cast<Number>(params.compat ? params.chunk + 2 * more
                                                       : static_cast<int64_t>(tokens.size()));
  for (const int64_t j : tokens) {
    for (size_t e = 0; e < mean_q.size(); ++e) {
      mean_q[e] += s.query(j, h)[e] / count;
      mean_k[e] += s.key(j, h)[e] / count;
    }
  }
  made.key = mapped(params, s, mean_k, "key_map");
  Vector<Number> proposal = mapped(params, s, mean_q, "query_map");
  for (size_t e = 0; e < proposal.size(); ++e) {
    proposal[e] += made.key[e];
    if (s.form == Form::noncausal) proposal[e] /= 2;
  }
  Vector<Number> logits;
  for (const int64_t j : tokens) {
    const Number* k = s.key(j, h);
    logits.push_back(scale * (dot_product(proposal.data(), k, s.K) - dot_product(k, k, s.K) / 2));
  }
  const Vector<Number> weights = softmax_of(logits);
  for (size_t r = 0; r < tokens.size(); ++r) {
    for (size_t e = 0; e < made.value.size(); ++e) {
      made.value[e] += weights[r] * s.value(tokens[r], h)[e];
    }
  }
  return made;
}

template <typename Number>
Vector<Number> definition(const EvaParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const bool causal = s.form == Form::causal;
  int64_t padded = s.T;
  if (params.compat) padded = (s.T + params.window - 1) / params.window * params.window;
  const int64_t chunks = (padded + params.chunk - 1) / params.chunk;
  Vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t h = 0; h < s.H; ++h) {
    Vector<Summary<Number>> summaries;
    for (int64_t c = 0; c < chunks; ++c) summaries.push_back(summary(params, s, c, h, scale));
    for (int64_t i = 0; i < s.T; ++i) {
      Vector<Number> logits;
      Vector<const Number*> values;
      const int64_t block = i / params.window * params.window;
      for (int64_t j = std::max<int64_t>(0, block - params.before(s.form));
           j < std::min(s.T, block + params.window + params.behind(s.form)); ++j) {
        if (!s.sees(i, j)) continue;
        logits.push_back(scale * dot_product(s.query(i, h), s.key(j, h), s.K));
        if (params.distance_bias) {
          const int64_t heads = causal ? 1 : s.H;
          const int64_t entry = params.bucket(s.form, j - i) * heads + (causal ? 0 : h);
          logits.back() += scale * s.parameter("distance_bias")[static_cast<size_t>(entry)];
        }
        values.push_back(s.value(j, h));
      }
      for (int64_t c = 0; c < chunks; ++c) {
        const Summary<Number>& other = summaries[static_cast<size_t>(c)];
        if (other.none || (causal && c >= i / params.chunk)) continue;
        logits.push_back(scale * dot_product(s.query(i, h), other.key.data(), s.K));
        values.push_back(other.value.data());
      }
      const Vector<Number> weights = softmax_of(std::move(logits));
      for (size_t r = 0; r < values.size(); ++r) {
        for (int64_t e = 0; e < s.V; ++e) {
          y[static_cast<size_t>((i * s.H + h) * s.V + e)] += weights[r] * values[r][e];
        }
      }
    }
  }
  return y;
}

}  // namespace linnet::eva_definition
