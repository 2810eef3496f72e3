// States that fade, in plain loops: the recurrence for literal definitions, and what is left of it
// where nothing fades, or all does; the traits of such mechanisms.
#pragma once

#include <cstddef>
#include <type_traits>

#include "attention/common/gated_norm.h"

namespace linnet {

// y_t [T,H,V] = S_t^T q_t with S_t = S' + k_t v_t^T, S' = diag(exp(log_decay(t, h, .))) S_{t-1},
// over the valid tokens. With beta(t, h) the delta rule: S_t = S' + beta k_t (v_t - S'^T k_t)^T.
template <typename Number, typename LogDecay, typename Beta = std::nullptr_t>
std::vector<Number> decayed_state_definition(const ReferenceSequence<Number>& s,
                                             const LogDecay& log_decay,
                                             [[maybe_unused]] const Beta& beta = nullptr) {
  constexpr bool delta = !std::is_null_pointer_v<Beta>;
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<Number> state(static_cast<size_t>(s.K * s.V), 0);
    for (int64_t t = 0; t < s.T; ++t) {
      if (s.key_valid[static_cast<size_t>(t)] == 0) continue;
      const Number *q = s.query(t, h), *k = s.key(t, h), *v = s.value(t, h);
      std::vector<Number> written(v, v + s.V);
      for (int64_t c = 0; c < s.K; ++c) {
        const Number decay = std::exp(log_decay(t, h, c));
        for (int64_t e = 0; e < s.V; ++e) {
          Number& value = state[static_cast<size_t>(c * s.V + e)];
          value *= decay;
          if (delta) written[static_cast<size_t>(e)] -= k[c] * value;
        }
      }
      if constexpr (delta) {
        const Number share = beta(t, h);
        for (Number& each : written) each *= share;
      }
      for (int64_t c = 0; c < s.K; ++c) {
        for (int64_t e = 0; e < s.V; ++e) {
          Number& value = state[static_cast<size_t>(c * s.V + e)];
          value += k[c] * written[static_cast<size_t>(e)];
          y[static_cast<size_t>((t * s.H + h) * s.V + e)] += q[c] * value;
        }
      }
    }
  }
  return y;
}

// The traits of these mechanisms: causal only, decoding with a state of constant size.
inline MixerTraits recurrent_traits() {
  MixerTraits traits;
  traits.causal = traits.decode_state = traits.constant_state = true;
  traits.growth = "T";
  return traits;
}

// A limiting case of a causal form.
inline LimitingCase causal_limit(
    const std::string& statement, const std::string& options,
    const std::function<void(const std::string&, std::vector<double>&)>& adjust,
    const std::function<std::vector<double>(const ReferenceSequence<double>&)>& expected) {
  return {statement, options, {Form::causal}, adjust, expected};
}

// Parameters to which a limiting case gives one value everywhere.
using FixedParameters = std::map<std::string, double>;
inline void fix(const FixedParameters& fixed, const std::string& name,
                std::vector<double>& values) {
  const auto found = fixed.find(name);
  if (found != fixed.end()) std::fill(values.begin(), values.end(), found->second);
}

// The limiting case of a mechanism whose decays are 1 where its parameters have the values `fixed`,
// normalised without a gate: y = RMSNorm(sum_{j <= i} (f(q_i) . f(k_j)) f(v_j)), f being silu or
// the identity.
inline LimitingCase limit_without_decay(const std::string& options, const FixedParameters& fixed,
                                        double epsilon, bool silu) {
  const auto expected = [=](const ReferenceSequence<double>& given) {
    ReferenceSequence<double> s = given;
    for (std::vector<double>* x : {&s.q, &s.k, &s.v}) {
      for (double& value : *x) value /= silu ? 1 + std::exp(-value) : 1;
    }
    const auto product = [&](int64_t h, int64_t i, int64_t j) {
      return dot_product(s.query(i, h), s.key(j, h), s.K);
    };
    std::vector<double> y = linear_attention_definition(s, product, [](double) { return 1.0; });
    apply_gated_norm({false, epsilon}, s, y);
    return y;
  };
  return causal_limit(
      "without decay it is linear attention without a denominator, normalised", options,
      [fixed](const auto& name, auto& values) { fix(fixed, name, values); }, expected);
}

// That of a mechanism whose state, with those values, holds v_i at key k_i after token i: a
// query that equals its key reads y_i = RMSNorm(f(v_i)), without a gate and with epsilon 1e-300.
inline LimitingCase limit_of_own_value(const std::string& statement, const std::string& options,
                                       const FixedParameters& fixed, bool silu) {
  const auto adjust = [fixed](const std::string& name, std::vector<double>& values) {
    fix(fixed, name, values);
    if (!name.starts_with("q.") && !name.starts_with("k.")) return;
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i + 1));
  };
  const auto expected = [silu](const ReferenceSequence<double>& s) {
    std::vector<double> y = s.v;
    for (double& value : y) value /= silu ? 1 + std::exp(-value) : 1;
    apply_gated_norm({false, 1e-300}, s, y);
    return y;
  };
  return causal_limit(statement, options, adjust, expected);
}

}  // namespace linnet
