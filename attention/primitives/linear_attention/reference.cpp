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
  const auto& [q, k, v, query_proportions, key_proportions, log_decay, query_mask, key_mask] =
      inputs;
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
      // exp(sum of the log-decay of tokens (after, upto]).
      const auto decay = [&inputs, &keys, key_head](int64_t after, int64_t upto) {
        double total = 0;
        for (int64_t l = after + 1; inputs.log_decay != nullptr && l <= upto; ++l) {
          if (!is_valid(inputs.key_mask, keys.row, l, inputs.k.T)) continue;
          total += inputs.log_decay[(keys.row * inputs.k.T + l) * inputs.k.H + key_head];
        }
        return std::exp(total);
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
        const double carried = decay(keys.begin - 1, i);
        for (int64_t r = 0; r < m; ++r) {
          if (mass != nullptr) denominator += carried * query[r] * mass[r];
          for (int64_t c = 0; memory != nullptr && c < V; ++c) {
            row[c] += carried * query[r] * memory[r * V + c];
          }
        }
        for (int64_t j = keys.begin; j < (causal ? i + 1 : keys.end); ++j) {
          if (!is_valid(key_mask, keys.row, j, k.T)) continue;
          const std::vector<double>& key = key_features[j - keys.begin];
          double weight = 0;
          for (int64_t r = 0; r < m; ++r) weight += query[r] * key[r];
          weight *= decay(j, i);
          denominator += weight;
          for (int64_t c = 0; c < V; ++c) row[c] += weight * v.at(keys.row, j, key_head)[c];
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
      const double carried = decay(keys.begin - 1, keys.end - 1);
      for (int64_t r = 0; r < m; ++r) {
        out_mass[r] = mass == nullptr ? 0 : carried * mass[r];
        for (int64_t c = 0; c < V; ++c) {
          out[r * V + c] = memory == nullptr ? 0 : carried * memory[r * V + c];
        }
      }
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        if (!is_valid(key_mask, keys.row, j, k.T)) continue;
        const std::vector<double>& key = key_features[j - keys.begin];
        const double left = decay(j, keys.end - 1);
        for (int64_t r = 0; r < m; ++r) {
          out_mass[r] += left * key[r];
          for (int64_t c = 0; c < V; ++c) {
            out[r * V + c] += left * key[r] * v.at(keys.row, j, key_head)[c];
          }
        }
      }
    }
  }
}

}  // namespace linnet
