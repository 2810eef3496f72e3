// The definition of slot attention, by plain loops in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "attention/primitives/slot_attention/cpu.h"
#include "autograd/dropout.h"

namespace linnet {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double alpha(SlotControl control, double logit) {
  switch (control) {
    case SlotControl::exp:
      return std::exp(logit);
    case SlotControl::sigmoid:
      return 1 / (1 + std::exp(-logit));
    case SlotControl::relu:
      return std::max(logit, 0.0);
    case SlotControl::given:
      break;
  }
  return logit;
}

// Weights of everything written to one slot, given the logits in order; exp in units of the largest
// logit. A carried state is an entry of its own: its logit is the log normalizer, or its weight is
// 1 and its normalizer counts instead.
struct Slot {
  std::vector<double> weights;
  bool empty = true;
};

Slot slot_weights(const SlotAttentionOptions& options, bool write_time,
                  const std::vector<double>& logits, bool carried, double carried_mass) {
  Slot slot;
  const size_t first = carried ? 1 : 0;
  const bool exponential = options.control == SlotControl::exp;
  std::vector<double> a(logits.size());
  double largest = carried && exponential ? carried_mass : kMinusInfinity;
  for (size_t i = first; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  for (size_t i = first; i < logits.size(); ++i) {
    // In write time the prefix sums need every scale: each one is formed relative to its own token.
    a[i] = exponential ? (logits[i] == kMinusInfinity ? 0 : std::exp(logits[i] - largest))
                       : alpha(options.control, logits[i]);
    slot.empty = slot.empty && a[i] == 0 && !(exponential && logits[i] != kMinusInfinity);
  }
  if (carried) {
    const bool used = exponential ? carried_mass != kMinusInfinity : carried_mass != 0;
    slot.empty = slot.empty && !used;
    a[0] = exponential ? (used ? std::exp(carried_mass - largest) : 0) : 1;
  }
  slot.weights = a;
  if (write_time) {
    for (size_t i = first; i < logits.size(); ++i) {
      double sum = 0;
      if (exponential) {
        if (logits[i] == kMinusInfinity) continue;
        for (size_t j = 0; j <= i; ++j) {
          const double other = carried && j == 0 ? carried_mass : logits[j];
          sum += std::exp(other - logits[i]);
        }
        slot.weights[i] = 1 / sum;
      } else {
        sum = carried ? carried_mass : 0;
        for (size_t j = first; j <= i; ++j) sum += a[j];
        slot.weights[i] = a[i] / std::max(sum, options.floor);
      }
    }
    if (carried) slot.weights[0] = 1;
  } else if (options.normalizer == SlotNormalizer::read_time) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sum += carried && i == 0 && !exponential ? carried_mass : a[i];
    }
    if (!exponential) sum = std::max(sum, options.floor);
    for (double& weight : slot.weights) weight = slot.empty ? 0 : weight / sum;
  }
  return slot;
}

}  // namespace

void slot_attention_reference(const SlotAttentionOptions& options, bool write_time,
                              const SlotAttentionInputs<double>& inputs, bool causal,
                              const std::vector<Span>& query_spans,
                              const std::vector<Span>& key_spans,
                              SlotAttentionState<const double> state_in, SequenceView<double> o) {
  const auto& [q, k, v, logits] = std::tie(inputs.q, inputs.k, inputs.v, inputs.logits);
  const uint8_t *query_mask = inputs.query_mask, *key_mask = inputs.key_mask;
  const SequenceView<const double>& value_logits =
      inputs.value_logits ? inputs.value_logits : logits;
  const int64_t N = logits.K, K = k.K, V = v.K;
  const DropoutSpec dropout{options.dropout, options.dropout_key, {}};
  for (size_t s = 0; s < query_spans.size(); ++s) {
    const Span &queries = query_spans[s], &keys = key_spans[s];
    const bool carried = queries.carries_in && state_in.keys != nullptr;
    for (int64_t h = 0; h < q.H; ++h) {
      const int64_t state = (queries.row * q.H + h) * N;
      for (int64_t t = queries.begin; t < queries.end; ++t) {
        double* out = o.at(queries.row, t, h);
        std::fill_n(out, V, 0.0);
        if (!is_valid(query_mask, queries.row, t, q.T)) continue;
        std::vector<float> kept(q.H * N, 1);
        if (options.dropout > 0) {
          dropout_row(dropout, inputs.examples ? inputs.examples[queries.row] : queries.row,
                      inputs.time_offset + t, q.H * N, kept.data());
        }
        std::vector<double> reads(N, kMinusInfinity), memory(N * V);
        for (int64_t l = 0; l < N; ++l) {
          std::vector<double> slot_logits(carried ? 1 : 0), own(slot_logits);
          std::vector<const double*> rows_k, rows_v;
          if (carried) {
            rows_k.push_back(state_in.keys + (state + l) * K);
            rows_v.push_back(state_in.values + (state + l) * V);
          }
          for (int64_t j = keys.begin; j < (causal ? t + 1 : keys.end); ++j) {
            if (!is_valid(key_mask, keys.row, j, k.T)) continue;
            slot_logits.push_back(logits.at(keys.row, j, h)[l]);
            own.push_back(value_logits.at(keys.row, j, h)[l]);
            rows_k.push_back(k.at(keys.row, j, h));
            rows_v.push_back(v.at(keys.row, j, h));
          }
          const Slot slot = slot_weights(options, write_time, slot_logits, carried,
                                         carried ? state_in.mass[state + l] : 0);
          if (slot.empty && options.mask_empty) continue;
          const Slot of_values = slot_weights(options, write_time, own, carried,
                                              carried ? state_in.mass[state + l] : 0);
          reads[l] = 0;
          for (size_t i = 0; i < rows_k.size(); ++i) {
            double product = 0;
            for (int64_t c = 0; c < K; ++c) product += q.at(queries.row, t, h)[c] * rows_k[i][c];
            reads[l] += options.scale * slot.weights[i] * product;
            for (int64_t c = 0; c < V; ++c)
              memory[l * V + c] += of_values.weights[i] * rows_v[i][c];
          }
        }
        const double largest = *std::max_element(reads.begin(), reads.end());
        if (largest == kMinusInfinity) continue;
        double sum = 0;
        for (const double read : reads) sum += std::exp(read - largest);
        for (int64_t l = 0; l < N; ++l) {
          const double probability = kept[h * N + l] * std::exp(reads[l] - largest) / sum;
          for (int64_t c = 0; c < V; ++c) out[c] += probability * memory[l * V + c];
        }
      }
    }
  }
}

}  // namespace linnet
