// The literal definition of LAVO: dense memories M = diag(m) B, one query at a time.
#pragma once

#include "attention/lavo/lavo.h"

namespace linnet {

template <typename Number>
Number lavo_scale(const LavoParams& params, const ReferenceSequence<Number>& s) {
  return static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
}

// [T,H,V]: softmax attention over the keys that allowed(i, j) admits, with position encoding.
template <typename Number, typename Allowed>
std::vector<Number> lavo_attention_reference(const LavoParams& params,
                                             const ReferenceSequence<Number>& s,
                                             const Allowed& allowed) {
  const int64_t reach = params.reach(s.form);
  const std::vector<Number> none;
  const std::vector<Number>& epe = params.epe == "off" ? none : s.parameter("epe");
  return softmax_attention_reference(
      s, lavo_scale(params, s), allowed, [&](int64_t h, int64_t i, int64_t j) -> Number {
        if (epe.empty()) return 0;
        const int64_t row = params.epe == "head" ? h : 0;
        return epe[static_cast<size_t>(row * (2 * reach + 1) + j - i + reach)];
      });
}

// f: in the window.
template <typename Number>
std::vector<Number> lavo_window_reference(const LavoParams& params,
                                          const ReferenceSequence<Number>& s) {
  return lavo_attention_reference(params, s, [&](int64_t i, int64_t j) {
    if (params.blocks(s.form)) return i / params.window == j / params.window;
    return j >= i - params.left(s.form) && j <= i + params.right(s.form);
  });
}

// The outputs that `pre_agg: separate` compresses: attention inside the own block of w tokens.
template <typename Number>
std::vector<Number> lavo_own_block_reference(const LavoParams& params,
                                             const ReferenceSequence<Number>& s) {
  return lavo_attention_reference(
      params, s, [&](int64_t i, int64_t j) { return i / params.window == j / params.window; });
}

// c_j = B f_j for every token and head, [S,H,r]; where heads share a basis, all heads' are equal.
template <typename Number>
std::vector<Number> lavo_codes_reference(const LavoParams& params,
                                         const ReferenceSequence<Number>& s,
                                         const std::vector<Number>& basis,
                                         const std::vector<Number>& f) {
  const int64_t r = params.rank;
  std::vector<Number> codes;
  for (int64_t j = 0; j < s.S; ++j) {
    const Number* token = &f[static_cast<size_t>(j * s.E)];
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t l = 0; l < r; ++l) {
        codes.push_back(params.basis == "model"
                            ? dot_product(&basis[static_cast<size_t>(l * s.E)], token, s.E)
                            : dot_product(&basis[static_cast<size_t>((h * r + l) * s.K)],
                                          token + h * s.K, s.K));
      }
    }
  }
  return codes;
}

// The r x K memory of head h as query i sees it, empty when it holds no token.
template <typename Number>
std::vector<Number> lavo_memory_reference(const LavoParams& params,
                                          const ReferenceSequence<Number>& s,
                                          const std::vector<Number>& basis,
                                          const std::vector<Number>& codes, int64_t i, int64_t h) {
  const int64_t r = params.rank;
  std::vector<Number> sum(static_cast<size_t>(r), 0);
  int64_t count = 0;
  for (int64_t j = 0; j < s.S; ++j) {
    const bool in_memory = s.form != Form::causal         ? true
                           : params.global_scope == "all" ? j <= i
                                                          : j / params.window < i / params.window;
    if (!in_memory || s.key_valid[static_cast<size_t>(j)] == 0) continue;
    ++count;
    for (int64_t l = 0; l < r; ++l) {
      sum[static_cast<size_t>(l)] += codes[static_cast<size_t>((j * s.H + h) * r + l)];
    }
  }
  if (count == 0) return {};
  std::vector<Number> memory;
  for (int64_t l = 0; l < r; ++l) {
    const int64_t row = params.basis == "model" ? l * s.E + h * s.K : (h * r + l) * s.K;
    for (int64_t c = 0; c < s.K; ++c) {
      memory.push_back(sum[static_cast<size_t>(l)] / static_cast<Number>(count) *
                       basis[static_cast<size_t>(row + c)]);
    }
  }
  return memory;
}

template <typename Number>
std::vector<Number> lavo_reference(const LavoParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number>& basis = s.parameter("basis");
  const bool cross = s.form == Form::cross;
  const std::vector<Number> f = cross ? std::vector<Number>() : lavo_window_reference(params, s);
  const std::string code = params.code_of(s.form);
  const bool separate = params.pre_agg == "separate";
  const std::vector<Number> g = separate ? lavo_own_block_reference(params, s) : f;
  const std::vector<Number>& compressed = code == "f_local" ? g
                                          : code == "k"     ? s.k
                                          : code == "v"     ? s.v
                                          : cross           ? s.source
                                                            : s.x;
  const std::vector<Number> codes = lavo_codes_reference(params, s, basis, compressed);
  const Number scale = lavo_scale(params, s);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.K));
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      std::vector<Number> global(static_cast<size_t>(s.K), 0);
      const std::vector<Number> memory = lavo_memory_reference(params, s, basis, codes, i, h);
      if (!memory.empty()) {
        std::vector<Number> logits;
        for (int64_t l = 0; l < params.rank; ++l) {
          logits.push_back(scale *
                           dot_product(&memory[static_cast<size_t>(l * s.K)], s.query(i, h), s.K));
        }
        const std::vector<Number> p = softmax_of(std::move(logits));
        for (int64_t l = 0; l < params.rank; ++l) {
          for (int64_t c = 0; c < s.K; ++c) {
            global[static_cast<size_t>(c)] +=
                p[static_cast<size_t>(l)] * memory[static_cast<size_t>(l * s.K + c)];
          }
        }
      }
      const bool local_only = memory.empty() && params.empty_memory == "local_only";
      for (int64_t c = 0; c < s.K; ++c) {
        const auto at = static_cast<size_t>((i * s.H + h) * s.K + c);
        const Number read = global[static_cast<size_t>(c)];
        y[at] = cross ? read : local_only ? f[at] : (f[at] + read) / 2;
      }
    }
  }
  return y;
}

}  // namespace linnet
