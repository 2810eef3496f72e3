// Performer by plain loops: its literal definition and limiting cases.
#pragma once

#include <vector>

#include "attention/performer/performer.h"
#include "attention/reference.h"

namespace linnet {

// The projections of one head's vector, and half its squared length.
template <typename Number>
struct PerformerExponents {
  std::vector<Number> p;
  Number half = 0;

  // The stabiliser of this vector.
  Number largest(bool rounded) const {
    const Number most = *std::max_element(p.begin(), p.end());
    return rounded ? std::ceil(most - half) : most;
  }
};

template <typename Number>
PerformerExponents<Number> performer_exponents(const PerformerParams& params,
                                               const ReferenceSequence<Number>& s, int64_t h,
                                               const Number* x) {
  const std::vector<Number>& omega = s.parameter("omega");
  const int64_t m = params.feature_count(s.K);
  const auto scale = static_cast<Number>(params.scale(s.K));
  const int64_t first = params.per == "head" ? h * m : 0;
  PerformerExponents<Number> e;
  for (int64_t r = first; r < first + m; ++r) {
    e.p.push_back(scale * dot_product(&omega[static_cast<size_t>(r * s.K)], x, s.K));
  }
  e.half = scale * scale * dot_product(x, x, s.K) / 2;
  return e;
}

// The sequence with zeros for padded keys and values, which then count as all others.
template <typename Number>
ReferenceSequence<Number> with_counted_padding(ReferenceSequence<Number> s) {
  for (int64_t j = 0; j < s.S; ++j) {
    if (s.key_valid[static_cast<size_t>(j)] != 0) continue;
    std::fill_n(&s.k[static_cast<size_t>(j * s.H * s.K)], s.H * s.K, Number{0});
    std::fill_n(&s.v[static_cast<size_t>(j * s.H * s.V)], s.H * s.V, Number{0});
    s.key_valid[static_cast<size_t>(j)] = 1;
  }
  return s;
}

template <typename Number>
std::vector<Number> performer_definition(const PerformerParams& params,
                                         const ReferenceSequence<Number>& given) {
  using Exponents = PerformerExponents<Number>;
  const ReferenceSequence<Number> s =
      params.padding == PerformerPadding::counted ? with_counted_padding(given) : given;
  const auto epsilon = static_cast<Number>(params.epsilon(s.form));
  const auto m = static_cast<Number>(params.feature_count(s.K));
  const bool rounded = params.rounds_maxima(s.form);
  std::vector<Exponents> queries, keys;
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    queries.push_back(performer_exponents(params, s, row % s.H, s.query(row / s.H, row % s.H)));
  }
  for (int64_t row = 0; row < s.S * s.H; ++row) {
    keys.push_back(performer_exponents(params, s, row % s.H, s.key(row / s.H, row % s.H)));
  }
  // The largest of the keys that query i sees, or of all keys.
  const auto key_stabilizer = [&](int64_t h, int64_t i) {
    Number most = -std::numeric_limits<Number>::infinity();
    for (int64_t j = 0; j < s.S; ++j) {
      const bool counts = params.key_maximum == KeyMaximum::seen
                              ? s.sees(i, j)
                              : s.key_valid[static_cast<size_t>(j)] != 0;
      if (counts) most = std::max(most, keys[static_cast<size_t>(j * s.H + h)].largest(rounded));
    }
    return most;
  };
  const auto features = [&](const Exponents& e, Number c) {
    std::vector<Number> phi;
    for (const Number p : e.p) {
      phi.push_back(params.kernel == PerformerKernel::relu
                        ? std::max(p, Number{0}) + epsilon
                        : (std::exp(p - e.half - c) + epsilon) / std::sqrt(m));
    }
    return phi;
  };
  // The keys' features by the stabiliser of the last query of their head, recomputed where another
  // query has another one.
  struct Written {
    Number c = std::numeric_limits<Number>::quiet_NaN();
    std::vector<std::vector<Number>> features;
  };
  std::vector<Written> written(static_cast<size_t>(s.H));
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t row = 0; row < s.T * s.H; ++row) {
    const int64_t i = row / s.H, h = row % s.H;
    const Exponents& query = queries[static_cast<size_t>(row)];
    const std::vector<Number> q = features(query, query.largest(rounded));
    Written& of_head = written[static_cast<size_t>(h)];
    if (const Number c = key_stabilizer(h, i); c != of_head.c) {
      of_head = {c, {}};
      for (int64_t j = 0; j < s.S; ++j) {
        of_head.features.push_back(features(keys[static_cast<size_t>(j * s.H + h)], c));
      }
    }
    Number total = 0;
    for (const Number f : q) total += static_cast<Number>(params.sum_epsilon) * f;
    Number* out = &y[static_cast<size_t>(row * s.V)];
    for (int64_t j = 0; j < s.S; ++j) {
      if (!s.sees(i, j)) continue;
      const std::vector<Number>& k = of_head.features[static_cast<size_t>(j)];
      const Number a = dot_product(q.data(), k.data(), static_cast<int64_t>(q.size()));
      total += a;
      for (int64_t e = 0; e < s.V; ++e) out[e] += a * s.value(j, h)[e];
    }
    for (int64_t e = 0; e < s.V; ++e) {
      out[e] /= reference_denominator(params.normalizer, params.floor, total);
    }
  }
  return y;
}

// Attention by 10 random features without stabilisers.
inline std::vector<double> unstabilized_performer(const ReferenceSequence<double>& s) {
  PerformerParams params;
  params.features = 10;
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        const auto q = performer_exponents(params, s, h, s.query(i, h));
        const auto k = performer_exponents(params, s, h, s.key(j, h));
        double a = 0;
        for (size_t r = 0; r < 10; ++r) a += std::exp(q.p[r] + k.p[r] - q.half - k.half);
        return a;
      },
      [](double x) { return x; });
}

inline std::vector<LimitingCase> performer_limits() {
  return {{"without epsilons stabilisers cancel",
           "{feature_epsilon: 0, features: 10, redraw_steps: 0}",
           {Form::noncausal, Form::causal, Form::cross},
           {},
           unstabilized_performer},
          {"so do maxima of all keys",
           "{feature_epsilon: 1.0e-20, key_maximum: sequence, sum_epsilon: 1.0e-20, features: 10, "
           "redraw_steps: 0}",
           {Form::causal},
           {},
           unstabilized_performer},
          {"equal keys give the mean of the values",
           "{redraw_steps: 0}",
           {Form::noncausal, Form::causal, Form::cross},
           [](const std::string& name, std::vector<double>& values) {
             if (name == "k.weight") std::fill(values.begin(), values.end(), 0);
           },
           [](const ReferenceSequence<double>& s) {
             return linear_attention_definition(
                 s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return x; });
           }},
          {"padded keys only enlarge denominators: without padding, counting them changes nothing",
           "{padding: counted, feature_epsilon: 1.0e-20, maximum_gradients: true, features: 10, "
           "redraw_steps: 0}",
           {Form::noncausal, Form::cross},
           {},
           unstabilized_performer}};
}

}  // namespace linnet
