// The definition of linear attention, by plain loops in double.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/primitives/linear_attention/cpu.h"

namespace linnet {
namespace {

double phi(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::elu1:
      return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::relu:
      return std::max(x, 0.0);
    case FeatureMap::elu:
      return x > 0 ? x : std::expm1(x);
    case FeatureMap::identity:
      break;
  }
  return x;
}

// Features of one token: phi(scale x), or its products with the cosine and sine of pi P / 2.
std::vector<double> features(FeatureMap map, double scale, const double* x, int64_t K,
                             const double* proportion) {
  std::vector<double> out;
  for (int64_t c = 0; c < K; ++c) out.push_back(phi(map, scale * x[c]));
  if (proportion == nullptr) return out;
  for (int64_t c = 0; c < K; ++c) {
    out.push_back(out[c] * std::sin(std::numbers::pi / 2 * *proportion));
    out[c] *= std::cos(std::numbers::pi / 2 * *proportion);
  }
  return out;
}

}  // namespace

void linear_attention_reference(const LinearAttentionOptions& options,
                                const LinearAttentionInputs<double>& inputs, bool causal,
                                const std::vector<Span>& query_spans,
                                const std::vector<Span>& key_spans,
                                LinearAttentionState<const double> state_in,
                                LinearAttentionState<double> state_out, SequenceView<double> y) {
  const auto& [q, k, v, query_proportions, key_proportions, log_decay, query_mask, key_mask,
               channel_decay] = inputs;
  const int64_t V = v.K, m = query_proportions == nullptr ? k.K : 2 * k.K;
  for (size_t s = 0; s < query_spans.size(); ++s) {
    const Span &queries = query_spans[s], &keys = key_spans[s];
    for (int64_t h = 0; h < q.H; ++h) {
      const int64_t key_head = h / (q.H / k.H), number = queries.row * k.H + key_head;
      const double* memory = queries.carries_in && state_in.memory != nullptr
                                 ? state_in.memory + number * m * V
                                 : nullptr;
      const double* mass =
          memory != nullptr && state_in.mass != nullptr ? state_in.mass + number * m : nullptr;
      std::vector<std::vector<double>> key_features;
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        key_features.push_back(features(
            options.feature_map, 1, k.at(keys.row, j, key_head), k.K,
            key_proportions == nullptr ? nullptr
                                       : key_proportions + (keys.row * k.T + j) * k.H + key_head));
      }
      // Adds the log-decay of a token that counts to the sums of every feature.
      const auto add_decay = [&inputs, &keys, key_head](int64_t j, std::vector<double>& sums) {
        const double* log_decay = inputs.log_decay;
        if (log_decay == nullptr) return;
        const int64_t head = (keys.row * inputs.k.T + j) * inputs.k.H + key_head;
        const auto m = static_cast<int64_t>(sums.size());
        for (int64_t r = 0; r < m; ++r)
          sums[r] += log_decay[inputs.channel_decay ? head * m + r : head];
      };
      for (int64_t i = queries.begin; i < queries.end; ++i) {
        double* row = y.at(queries.row, i, h);
        std::fill_n(row, V, 0.0);
        if (!is_valid(query_mask, queries.row, i, q.T)) continue;
        const std::vector<double> query = features(
            options.feature_map, options.query_scale, q.at(queries.row, i, h), q.K,
            query_proportions == nullptr ? nullptr
                                         : query_proportions + (queries.row * q.T + i) * q.H + h);
        double denominator = 0;
        std::vector<double> decay(static_cast<size_t>(m));  // of the tokens after j
        for (int64_t j = (causal ? i + 1 : keys.end) - 1; j >= keys.begin; --j) {
          if (!is_valid(key_mask, keys.row, j, k.T)) continue;
          const std::vector<double>& key = key_features[j - keys.begin];
          double weight = 0;
          for (int64_t r = 0; r < m; ++r) weight += query[r] * key[r] * std::exp(decay[r]);
          denominator += weight;
          for (int64_t c = 0; c < V; ++c) row[c] += weight * v.at(keys.row, j, key_head)[c];
          add_decay(j, decay);
        }
        for (int64_t r = 0; r < m; ++r) {
          const double carried = query[r] * std::exp(decay[r]);
          if (mass != nullptr) denominator += carried * mass[r];
          for (int64_t c = 0; memory != nullptr && c < V; ++c) {
            row[c] += carried * memory[r * V + c];
          }
        }
        if (options.normalizer == Normalizer::add) denominator += options.epsilon;
        if (options.normalizer == Normalizer::clamp) {
          denominator = std::max(denominator, options.epsilon);
        }
        if (options.normalizer == Normalizer::none) denominator = 1;
        for (int64_t c = 0; c < V; ++c) row[c] /= denominator;
      }
      if (!queries.carries_out || state_out.memory == nullptr) continue;
      double* out = state_out.memory + number * m * V;
      double* out_mass = state_out.mass + number * m;
      std::fill_n(out, m * V, 0.0);
      std::fill_n(out_mass, m, 0.0);
      std::vector<double> decay(static_cast<size_t>(m));
      for (int64_t j = keys.end - 1; j >= keys.begin; --j) {
        if (!is_valid(key_mask, keys.row, j, k.T)) continue;
        for (int64_t r = 0; r < m; ++r) {
          const double left = std::exp(decay[r]) * key_features[j - keys.begin][r];
          out_mass[r] += left;
          for (int64_t c = 0; c < V; ++c) out[r * V + c] += left * v.at(keys.row, j, key_head)[c];
        }
        add_decay(j, decay);
      }
      for (int64_t r = 0; r < m; ++r) {
        if (mass != nullptr) out_mass[r] += std::exp(decay[r]) * mass[r];
        for (int64_t c = 0; memory != nullptr && c < V; ++c) {
          out[r * V + c] += std::exp(decay[r]) * memory[r * V + c];
        }
      }
    }
  }
}

}  // namespace linnet
