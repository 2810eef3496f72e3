// Luna by plain loops: its literal definition in every form.
#pragma once

#include "attention/luna/luna.h"
#include "attention/reference.h"

namespace linnet::luna_definition {

// x [n,E] by a projection of that name.
template <typename Number>
std::vector<Number> projected(const ReferenceSequence<Number>& s, const std::vector<Number>& x,
                              const std::string& name) {
  const std::vector<Number>& weight = s.parameter(name + ".weight");
  const auto bias = s.parameters.find(name + ".bias");
  std::vector<Number> y(x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t token = i / static_cast<size_t>(s.E), o = i % static_cast<size_t>(s.E);
    y[i] = s.stored(dot_product(&x[token * static_cast<size_t>(s.E)],
                                &weight[o * static_cast<size_t>(s.E)], s.E) +
                    (bias == s.parameters.end() ? Number{0} : bias->second[o]));
  }
  return y;
}

// Softmax attention of all heads, of K channels, of queries [n,E] over [m,E], which holds both keys
// and values.
template <typename Number>
std::vector<Number> read(const ReferenceSequence<Number>& s, const std::vector<Number>& queries,
                         const std::vector<Number>& memory, const std::vector<uint8_t>& valid,
                         int64_t K, Number scale) {
  const auto width = static_cast<size_t>(s.E);
  std::vector<Number> y(queries.size(), 0);
  for (size_t i = 0; i < queries.size() / width; ++i) {
    for (size_t h = 0; h < width; h += static_cast<size_t>(K)) {
      std::vector<Number> logits;
      for (size_t j = 0; j < valid.size(); ++j) {
        logits.push_back(valid[j] == 0 ? -std::numeric_limits<Number>::infinity()
                                       : scale * dot_product(&queries[i * width + h],
                                                             &memory[j * width + h], K));
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (size_t j = 0; j < valid.size(); ++j) {
        if (valid[j] == 0) continue;
        for (size_t c = h; c < h + static_cast<size_t>(K); ++c) {
          y[i * width + c] += weights[j] * memory[j * width + c];
        }
      }
    }
  }
  for (Number& value : y) value = s.stored(value);
  return y;
}

// The memory of a first layer, [l,E].
template <typename Number>
std::vector<Number> first_memory(const LunaParams& params, const ReferenceSequence<Number>& s) {
  std::vector<Number> p = s.parameter("luna_memory");
  for (size_t i = 0; params.slot_positions && i < p.size(); ++i) {
    const auto slot = static_cast<int64_t>(i / static_cast<size_t>(s.E));
    const auto channel = static_cast<int64_t>(i % static_cast<size_t>(s.E));
    const Number angle = static_cast<Number>(slot) *
                         std::pow(Number{10000}, -static_cast<Number>(channel - channel % 2) /
                                                     static_cast<Number>(s.E));
    p[i] = s.stored(p[i] + (channel % 2 == 0 ? std::sin(angle) : std::cos(angle)));
  }
  return p;
}

// Causal: the tokens so far are summed into the memory's vectors, whose queries are the same in
// every layer; the weight of a token is softplus with beta = ln 2.
template <typename Number>
std::vector<Number> causal_definition(const LunaParams& params, const ReferenceSequence<Number>& s,
                                      Number scale) {
  const std::vector<Number> memory = projected(s, first_memory(params, s), "pack_query");
  const std::vector<Number> writers = projected(s, s.x, "pack_context");
  const std::vector<Number> queries = projected(s, s.x, "query");
  const std::vector<Number> written = projected(s, s.x, "context");
  std::vector<Number> y(queries.size(), 0);
  const auto part = [&](const std::vector<Number>& x, int64_t row, int64_t h) {
    return &x[static_cast<size_t>(row * s.E + h * s.K)];
  };
  for (int64_t h = 0; h < s.H; ++h) {
    const auto weight = [&](int64_t l, int64_t j) {
      return std::log2(
          1 + std::exp2(scale * dot_product(part(memory, l, h), part(writers, j, h), s.K)));
    };
    for (int64_t i = 0; i < s.T; ++i) {
      Number count = 0;
      for (int64_t j = 0; j <= i; ++j) count += s.sees(i, j) ? 1 : 0;
      std::vector<Number> logits(static_cast<size_t>(params.slots), 0);
      for (int64_t j = 0; j <= i; ++j) {
        if (!s.sees(i, j)) continue;
        const Number product = scale * dot_product(part(queries, i, h), part(written, j, h), s.K);
        for (int64_t l = 0; l < params.slots; ++l) {
          logits[static_cast<size_t>(l)] += product * weight(l, j) / count;
        }
      }
      const std::vector<Number> read = softmax_of(std::move(logits));
      for (int64_t j = 0; j <= i; ++j) {
        if (!s.sees(i, j)) continue;
        Number total = 0;
        for (int64_t l = 0; l < params.slots; ++l) {
          total += read[static_cast<size_t>(l)] * weight(l, j) / count;
        }
        for (int64_t c = 0; c < s.K; ++c) {
          y[static_cast<size_t>(i * s.E + h * s.K + c)] += total * part(written, j, h)[c];
        }
      }
    }
  }
  return y;
}

// Y_P of a first layer, [l,E].
template <typename Number>
std::vector<Number> packed_memory(const LunaParams& params, const ReferenceSequence<Number>& s) {
  const int64_t width = s.E / params.pack_heads.value_or(s.H);
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(width))));
  return read(s, projected(s, first_memory(params, s), "pack_query"),
              projected(s, s.form == Form::cross ? s.source : s.x, "pack_context"), s.key_valid,
              width, scale);
}

template <typename Number>
std::vector<Number> definition(const LunaParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  if (s.form == Form::causal) return causal_definition(params, s, scale);
  const std::vector<Number> packed = packed_memory(params, s);
  const bool any = std::count(s.key_valid.begin(), s.key_valid.end(), 0) < s.S;
  const std::vector<uint8_t> slots(static_cast<size_t>(params.slots), any ? 1 : 0);
  return read(s, projected(s, s.x, "query"), projected(s, packed, "context"), slots, s.K, scale);
}

}  // namespace linnet::luna_definition
