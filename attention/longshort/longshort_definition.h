// Long-short attention by plain loops: its literal definition.
#pragma once

#include "attention/longshort/longshort.h"
#include "attention/reference.h"

namespace linnet::longshort_definition {

template <typename Number>
using Vector = std::vector<Number>;

// The layer norm of that name over all heads of a vector.
template <typename Number>
Vector<Number> normed(const LongshortParams& params, const ReferenceSequence<Number>& s,
                      Vector<Number> x, const std::string& name) {
  if (!params.norm) return x;
  Number mean = 0, variance = 0;
  const auto width = static_cast<Number>(x.size());
  for (const Number value : x) mean += value / width;
  for (const Number value : x) variance += (value - mean) * (value - mean) / width;
  for (size_t e = 0; e < x.size(); ++e) {
    x[e] = (x[e] - mean) / std::sqrt(variance + static_cast<Number>(1e-5)) *
               s.parameter(name + ".gain")[e] +
           s.parameter(name + ".bias")[e];
  }
  return x;
}

// W x + b of that name; b may be absent.
template <typename Number>
Vector<Number> mapped(const ReferenceSequence<Number>& s, const Number* x,
                      const std::string& name) {
  const Vector<Number>& weight = s.parameter(name + ".weight");
  Vector<Number> y(weight.size() / static_cast<size_t>(s.E), 0);
  const auto bias = s.parameters.find(name + ".bias");
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = dot_product(x, &weight[o * static_cast<size_t>(s.E)], s.E);
    if (bias != s.parameters.end()) y[o] += bias->second[o];
  }
  return y;
}

// The vector of a distance.
template <typename Number>
Vector<Number> distance_vector(const LongshortParams& params, const ReferenceSequence<Number>& s,
                               int64_t d, const std::string& name) {
  const bool halves = params.sinusoids == "halves";
  Vector<Number> sinusoid;
  for (int64_t e = 0; e < s.E; ++e) {
    const int64_t pair = halves ? e % (s.E / 2) : e / 2;
    const Number rate =
        std::pow(Number{10000}, -static_cast<Number>(2 * pair) / static_cast<Number>(s.E));
    const Number angle = static_cast<Number>(d) * rate;
    const bool is_sine = halves ? e < s.E / 2 : e % 2 == 0;
    sinusoid.push_back(is_sine ? std::sin(angle) : std::cos(angle));
  }
  return mapped(s, sinusoid.data(), name);
}

// A key and a value of all heads.
template <typename Number>
struct Pair {
  Vector<Number> key, value;
};

// The weighted sum of tokens in one compressed vector; empty where no token is valid. `logits`:
// logits of the compression, [T][H count].
template <typename Number>
Pair<Number> compressed(const LongshortParams& params, const ReferenceSequence<Number>& s,
                        const Vector<Pair<Number>>& tokens, const Vector<Vector<Number>>& logits,
                        int64_t begin, int64_t end, int64_t number, int64_t count) {
  Pair<Number> made{Vector<Number>(static_cast<size_t>(s.E), 0),
                    Vector<Number>(static_cast<size_t>(s.E), 0)};
  bool any = false;
  for (int64_t h = 0; h < s.H; ++h) {
    Vector<Number> own(static_cast<size_t>(end - begin), -std::numeric_limits<Number>::infinity());
    for (int64_t j = begin; j < end; ++j) {
      if (s.key_valid[static_cast<size_t>(j)] == 0) continue;
      own[static_cast<size_t>(j - begin)] =
          logits[static_cast<size_t>(j)][static_cast<size_t>(h * count + number)];
      any = true;
    }
    const Vector<Number> weights = softmax_of(std::move(own));
    for (int64_t j = begin; j < end; ++j) {
      const Number weight = weights[static_cast<size_t>(j - begin)];
      if (weight == 0) continue;
      for (int64_t e = h * s.K; e < (h + 1) * s.K; ++e) {
        made.key[static_cast<size_t>(e)] +=
            weight * tokens[static_cast<size_t>(j)].key[static_cast<size_t>(e)];
        made.value[static_cast<size_t>(e)] +=
            weight * tokens[static_cast<size_t>(j)].value[static_cast<size_t>(e)];
      }
    }
  }
  if (!any) return {};
  made.key = normed(params, s, std::move(made.key), "summary_norm");
  made.value = normed(params, s, std::move(made.value), "summary_norm");
  return made;
}

// The sequence after that many tokens of zeros.
template <typename Number>
ReferenceSequence<Number> after_zeros(ReferenceSequence<Number> s, int64_t tokens) {
  for (Vector<Number>* x : {&s.q, &s.k, &s.v, &s.x}) {
    x->insert(x->begin(), static_cast<size_t>(tokens * s.E), Number{0});
  }
  s.key_valid.insert(s.key_valid.begin(), static_cast<size_t>(tokens), uint8_t{1});
  s.T += tokens;
  s.S += tokens;
  return s;
}

template <typename Number>
Vector<Number> definition(const LongshortParams& params, const ReferenceSequence<Number>& given) {
  const int64_t null = given.form == Form::causal ? params.null_tokens : 0;
  const ReferenceSequence<Number> s = after_zeros(given, null);
  const bool causal = s.form == Form::causal, relative = causal && params.relative;
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const int64_t count = causal ? params.rank : params.landmarks;
  Vector<Pair<Number>> plain, tokens, summaries;
  Vector<Vector<Number>> logits;
  for (int64_t j = 0; j < s.T; ++j) {
    plain.push_back({{s.key(j, 0), s.key(j, 0) + s.E}, {s.value(j, 0), s.value(j, 0) + s.E}});
    tokens.push_back({normed(params, s, plain.back().key, "token_norm"),
                      normed(params, s, plain.back().value, "token_norm")});
    if (count == 0) continue;
    logits.push_back(mapped(s, &s.x[static_cast<size_t>(j * s.E)], "compress"));
    for (Number& logit : logits.back()) logit = s.stored(logit);
  }
  const int64_t length = causal ? params.chunk : s.T;
  for (int64_t begin = 0; begin < s.T; begin += length) {
    for (int64_t i = 0; i < count; ++i) {
      summaries.push_back(compressed(params, s, causal ? plain : tokens, logits, begin,
                                     std::min(s.T, begin + length), i, count));
    }
  }
  Vector<Vector<Number>> near, far;
  for (int64_t d = 0; relative && d < params.window; ++d) {
    near.push_back(distance_vector(params, s, d, "positions"));
  }
  for (int64_t d = 0; relative && d < std::ssize(summaries); ++d) {
    far.push_back(distance_vector(params, s, d, "chunk_positions"));
  }
  Vector<Number> y(static_cast<size_t>(s.T * s.E), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    int64_t begin = i - params.window + 1, end = i + 1;
    if (!causal) {
      begin = i - i % params.window - params.side();
      end = i - i % params.window + params.window + params.side();
    }
    const int64_t seen =
        causal ? i / params.chunk * params.rank : static_cast<int64_t>(summaries.size());
    for (int64_t h = 0; h < s.H; ++h) {
      // s q . k + u . k of one head's part of a vector of all heads.
      const auto product = [&](const Vector<Number>& k, const char* vector) {
        Number total = 0;
        for (int64_t e = 0; e < s.K; ++e) {
          Number q = scale * s.query(i, h)[e];
          if (relative && vector != nullptr) {
            q += s.parameter(vector)[static_cast<size_t>(h * s.K + e)];
          }
          total += q * k[static_cast<size_t>(h * s.K + e)];
        }
        return total;
      };
      Vector<Number> own;
      Vector<const Number*> values;
      for (int64_t j = std::max<int64_t>(begin, 0); j < std::min(end, s.T); ++j) {
        if (!s.sees(i, j)) continue;
        const Pair<Number>& token = tokens[static_cast<size_t>(j)];
        own.push_back(product(token.key, "content_vector"));
        if (relative) own.back() += product(near[static_cast<size_t>(i - j)], "position_vector");
        values.push_back(&token.value[static_cast<size_t>(h * s.K)]);
      }
      for (int64_t u = 0; u < seen; ++u) {
        const Pair<Number>& other = summaries[static_cast<size_t>(u)];
        if (other.key.empty()) continue;
        own.push_back(product(other.key, nullptr));
        if (relative) own.back() += product(far[static_cast<size_t>(seen - 1 - u)], nullptr);
        values.push_back(&other.value[static_cast<size_t>(h * s.K)]);
      }
      const Vector<Number> weights = softmax_of(std::move(own));
      for (size_t r = 0; r < values.size(); ++r) {
        for (int64_t e = 0; e < s.V; ++e) {
          y[static_cast<size_t>(i * s.E + h * s.V + e)] += weights[r] * values[r][e];
        }
      }
    }
  }
  y.erase(y.begin(), y.begin() + null * s.E);
  return y;
}

}  // namespace linnet::longshort_definition
