// For tests: hidden states of T5 in plain loops, in double, from the tensors of its files by their
// own names. Source: Raffel et al. 2020, and v1.1's gated feed-forward (Shazeer 2020).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/recipes/pretrained_definition.h"

namespace linnet::test {

struct DefinedT5 {
  size_t layers, decoder_layers, width, heads;
  double epsilon = 1e-6;
  bool gated = false;
};

// Bucket of a key that is `distance` behind (negative) or before the query.
inline size_t t5_bucket(int distance, bool bidirectional) {
  const int buckets = bidirectional ? 16 : 32, exact = buckets / 2;
  const int offset = bidirectional && distance > 0 ? buckets : 0;
  const int far = bidirectional ? std::abs(distance) : std::max(-distance, 0);
  if (far < exact) return static_cast<size_t>(offset) + static_cast<size_t>(far);
  const double logarithmic = std::log(static_cast<double>(far) / exact) / std::log(128.0 / exact);
  const int bucket = exact + static_cast<int>(logarithmic * (buckets - exact));
  return static_cast<size_t>(offset) + static_cast<size_t>(std::min(bucket, buckets - 1));
}

class T5Definition {
 public:
  T5Definition(const NamedValues& in, const DefinedT5& model) : in_(in), model_(model) {}

  // The decoder's vectors: it has `start` and the ids but the last; the first `valid` are seen by
  // the encoder and what reads it.
  Vectors hidden(const std::vector<int32_t>& ids, int32_t start, size_t valid) const {
    std::vector<int32_t> shifted{start};
    shifted.insert(shifted.end(), ids.begin(), ids.end() - 1);
    const Vectors source = stack("encoder", model_.layers, ids, valid, nullptr);
    return stack("decoder", model_.decoder_layers, shifted, valid, &source);
  }

 private:
  std::vector<double> norm(const std::string& name, const std::vector<double>& x) const {
    double square = 0;
    for (const double v : x) square += v * v / static_cast<double>(x.size());
    std::vector<double> y = in_.at(name + ".weight");
    for (size_t i = 0; i < x.size(); ++i) y[i] *= x[i] / std::sqrt(square + model_.epsilon);
    return y;
  }
  std::vector<double> map(const std::string& name, const std::vector<double>& x) const {
    const std::vector<double>& w = in_.at(name + ".weight");
    return affine(w, std::vector<double>(w.size() / x.size(), 0), x);
  }
  // `bias` of a head, a query and a key.
  template <typename Sees, typename Bias>
  std::vector<double> attention(const std::string& name, const std::vector<double>& x,
                                const Vectors& keys, const Sees& sees, const Bias& bias) const {
    const size_t head = model_.width / model_.heads;
    const std::vector<double> q = map(name + ".q", x);
    std::vector<double> y(model_.width, 0);
    for (size_t h = 0; h < model_.heads; ++h) {
      std::vector<double> weights(keys.size(), 0), sums(head, 0);
      double total = 0;
      for (size_t s = 0; s < keys.size(); ++s) {
        if (!sees(s)) continue;
        const std::vector<double> k = map(name + ".k", keys[s]), v = map(name + ".v", keys[s]);
        double score = bias(h, s);
        for (size_t c = h * head; c < (h + 1) * head; ++c) score += q[c] * k[c];
        weights[s] = std::exp(score);
        total += weights[s];
        for (size_t c = 0; c < head; ++c) sums[c] += weights[s] * v[h * head + c];
      }
      for (size_t c = 0; c < head; ++c) y[h * head + c] = sums[c] / total;
    }
    return map(name + ".o", y);
  }
  std::vector<double> feed_forward(const std::string& name, const std::vector<double>& x) const {
    std::vector<double> hidden = map(name + (model_.gated ? ".wi_0" : ".wi"), x);
    for (double& h : hidden) h = model_.gated ? gelu_new(h) : std::max(h, 0.0);
    if (model_.gated) {
      const std::vector<double> factor = map(name + ".wi_1", x);
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] *= factor[i];
    }
    return map(name + ".wo", hidden);
  }
  // source: null in the encoder.
  Vectors stack(const std::string& name, size_t layers, const std::vector<int32_t>& ids,
                size_t valid, const Vectors* source) const {
    Vectors x;
    for (const int32_t id : ids) {
      x.push_back(row(in_.at("shared.weight"), static_cast<size_t>(id), model_.width));
    }
    const std::vector<double>& table =
        in_.at(name + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string block = concat(name, ".block.", layer, ".layer.");
      Vectors normed, next;
      for (const auto& each : x) normed.push_back(norm(block + "0.layer_norm", each));
      for (size_t t = 0; t < x.size(); ++t) {
        const auto sees = [&](size_t s) { return source != nullptr ? s <= t : s < valid; };
        const auto bias = [&](size_t h, size_t s) {
          const int distance = static_cast<int>(s) - static_cast<int>(t);
          return table[t5_bucket(distance, source == nullptr) * model_.heads + h];
        };
        std::vector<double> y =
            plus(x[t], attention(block + "0.SelfAttention", normed[t], normed, sees, bias));
        if (source != nullptr) {
          y = plus(y, attention(
                          block + "1.EncDecAttention", norm(block + "1.layer_norm", y), *source,
                          [&](size_t s) { return s < valid; }, [](size_t, size_t) { return 0.0; }));
        }
        const std::string last = block + (source != nullptr ? "2." : "1.");
        next.push_back(
            plus(y, feed_forward(last + "DenseReluDense", norm(last + "layer_norm", y))));
      }
      x = next;
    }
    for (auto& each : x) each = norm(name + ".final_layer_norm", each);
    return x;
  }

  const NamedValues& in_;
  DefinedT5 model_;
};

}  // namespace linnet::test
