// LARA by plain loops: its literal definition.
#pragma once

#include "attention/lara/lara.h"
#include "attention/reference.h"

namespace linnet::lara_definition {

// One landmark each: tokens [first, last) of the valid tokens.
struct Run {
  int64_t first, last;
};

inline std::vector<Run> runs_of(int64_t valid, int64_t landmarks) {
  std::vector<Run> runs;
  const int64_t count = std::min(valid, landmarks);
  int64_t at = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t length = valid / count + (c >= count - valid % count ? 1 : 0);
    runs.push_back({at, at + length});
    at += length;
  }
  return runs;
}

template <typename Number>
using Vector = std::vector<Number>;

// log of the weight exp(s (w . x - |x|^2 / 2)).
template <typename Number>
Number log_weight(const Vector<Number>& w, const Vector<Number>& x, Number s) {
  const auto K = static_cast<int64_t>(w.size());
  return s * (dot_product(w.data(), x.data(), K) - dot_product(x.data(), x.data(), K) / 2);
}

template <typename Number>
Number log_sum_exp(const Vector<Number>& logits) {
  const Number largest = *std::max_element(logits.begin(), logits.end());
  Number total = 0;
  for (const Number logit : logits) total += std::exp(logit - largest);
  return largest + std::log(total);
}

// The vectors whose mean a landmark is: x, or its learned map of that name.
template <typename Number>
Vector<Number> mapped(const LaraParams& params, const ReferenceSequence<Number>& s,
                      const Vector<Number>& x, const std::string& name) {
  if (!params.learned) return x;
  const Vector<Number>& weight = s.parameter(name + ".weight");
  Vector<Number> y = s.parameter(name + ".bias");
  Number mean = 0, variance = 0;
  const auto width = static_cast<Number>(s.K);
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] += dot_product(x.data(), &weight[o * y.size()], s.K);
    mean += y[o] / width;
  }
  for (const Number value : y) variance += (value - mean) * (value - mean) / width;
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = (y[o] - mean) / std::sqrt(variance + static_cast<Number>(1e-5)) *
               s.parameter(name + ".norm.gain")[o] +
           s.parameter(name + ".norm.bias")[o];
  }
  return y;
}

template <typename Number>
Vector<Number> definition(const LaraParams& params, const ReferenceSequence<Number>& s) {
  const Number root = std::sqrt(std::sqrt(static_cast<Number>(s.K)));
  const Number scale = params.exact ? 1 : 1 / (root * root);
  // Valid tokens, and those that landmarks are cut from.
  Vector<int64_t> valid, tokens;
  const auto is_valid = [&](int64_t j) { return s.key_valid[static_cast<size_t>(j)] != 0; };
  for (int64_t j = 0; j < s.S; ++j) {
    if (is_valid(j)) valid.push_back(j);
    if (is_valid(j) || params.padding != LaraPadding::ignored) tokens.push_back(j);
  }
  const Vector<Run> runs = runs_of(static_cast<int64_t>(tokens.size()), params.landmarks);
  Vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  if (valid.empty()) return y;
  for (int64_t h = 0; h < s.H; ++h) {
    const auto vector_of = [&](const Number* from, int64_t j) {
      Vector<Number> x(static_cast<size_t>(s.K), 0);
      for (size_t c = 0; is_valid(j) && c < x.size(); ++c) {
        x[c] = from[c] / (params.exact ? root : Number{1});
      }
      return x;
    };
    const auto query_of = [&](int64_t j) { return vector_of(s.query(j, h), j); };
    const auto key_of = [&](int64_t j) { return vector_of(s.key(j, h), j); };
    Vector<Vector<Number>> centers, query_means, reads;
    Vector<Number> sums;
    for (const Run& run : runs) {
      Vector<Number> query_mean(static_cast<size_t>(s.K), 0);
      Vector<Number> center(static_cast<size_t>(s.K), 0), logits, read(static_cast<size_t>(s.V), 0);
      for (int64_t r = run.first; r < run.last; ++r) {
        const int64_t j = tokens[static_cast<size_t>(r)];
        const auto a = mapped(params, s, query_of(j), "query_landmark");
        const auto b = mapped(params, s, key_of(j), "key_landmark");
        for (size_t c = 0; c < center.size(); ++c) {
          center[c] += (a[c] + b[c]) / static_cast<Number>(run.last - run.first);
          query_mean[c] += a[c] / static_cast<Number>(run.last - run.first);
        }
      }
      for (const int64_t j : valid) logits.push_back(log_weight(center, key_of(j), scale));
      if (params.padding == LaraPadding::counted) {
        Vector<Number> all;
        for (const int64_t j : tokens) all.push_back(log_weight(center, key_of(j), scale));
        sums.push_back(log_sum_exp(all));
      } else {
        sums.push_back(log_sum_exp(logits));
      }
      const Vector<Number> weights = softmax_of(logits);
      for (size_t r = 0; r < valid.size(); ++r) {
        for (int64_t c = 0; c < s.V; ++c) {
          read[static_cast<size_t>(c)] += weights[r] * s.value(valid[r], h)[c];
        }
      }
      centers.push_back(std::move(center));
      query_means.push_back(std::move(query_mean));
      reads.push_back(std::move(read));
    }
    // Share of query i among all queries near a landmark's mean.
    const auto nearness = [&](size_t c, int64_t i) {
      Vector<Number> logits;
      const auto product = [&](int64_t j) {
        return scale * dot_product(query_means[c].data(), query_of(j).data(), s.K);
      };
      for (const int64_t j : tokens) logits.push_back(product(j));
      return std::exp(product(i) - log_sum_exp(logits));
    };
    for (const int64_t i : valid) {
      const Vector<Number> query = query_of(i);
      Vector<Number> logits;
      Number middle = 0;
      for (size_t c = 0; params.weighting == LandmarkWeighting::optimal && c < centers.size();
           ++c) {
        middle += nearness(c, i) / static_cast<Number>(centers.size());
      }
      for (size_t c = 0; c < centers.size(); ++c) {
        Number logit = log_weight(centers[c], query, scale) + sums[c];
        if (params.weighting == LandmarkWeighting::cab ||
            params.weighting == LandmarkWeighting::biased) {
          logit += scale * dot_product(centers[c].data(), query.data(), s.K);
        }
        if (params.weighting == LandmarkWeighting::cab) {
          logit -= log_weight(centers[c], centers[c], scale);
        } else {
          Vector<Number> densities;
          for (const Vector<Number>& other : centers) {
            densities.push_back(log_weight(centers[c], other, scale));
          }
          const Number density = log_sum_exp(densities);
          if (params.weighting != LandmarkWeighting::optimal) {
            logit -= density;
          } else {
            const Number own = log_weight(centers[c], centers[c], scale);
            const Number alpha = std::exp(own - density) + nearness(c, i) - middle;
            logit += std::log(std::max(alpha, static_cast<Number>(1e-8))) - own;
          }
        }
        logits.push_back(logit);
      }
      const Vector<Number> weights = softmax_of(std::move(logits));
      for (size_t l = 0; l < weights.size(); ++l) {
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] +=
              weights[l] * reads[l][static_cast<size_t>(c)];
        }
      }
    }
  }
  return y;
}

}  // namespace linnet::lara_definition
