// Shared code of the mechanisms over a memory of slots (the ABC family, Linformer): the steps of a
// mixer in every form, their cost, and the literal definition.
#pragma once

#include <functional>

#include "attention/common/mixer_support.h"
#include "attention/mechanism.h"
#include "attention/primitives/slot_attention/slot_attention.h"

namespace linnet {

struct SlotMixing {
  SlotAttentionOptions options;
  bool write_time = false;  // as SlotAttentionContext says
  bool accumulate = true;
};

// Options of the read, common to all: members mask_empty, scale and dropout. `empty` says which
// slots are left out.
template <typename Params>
void describe_slot_read(ConfigDescription<Params>& d, const std::string& empty) {
  d.field("mask_empty", &Params::mask_empty,
          empty + " are left out; otherwise they are zeros that take softmax weight");
  describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
  describe_dropout(d);
}
// The mixing that these options specify; `key`: of the layer's draws.
template <typename Params>
SlotMixing slot_mixing(const Params& params, const MixerOptions& options,
                       const MixerContext& context, const RandomKey& key) {
  SlotMixing mixing;
  mixing.options.scale = params.scale.value_or(default_scale(options));
  mixing.options.mask_empty = params.mask_empty;
  if (context.training) {
    mixing.options.dropout = params.dropout.value_or(options.dropout);
    mixing.options.dropout_key = key.at("slot_weights");
  }
  return mixing;
}
// The same where the control is given by choices: slots hold means or sums of the tokens written to
// them.
template <typename Params>
SlotMixing given_slot_mixing(const Params& params, bool means, const MixerOptions& options,
                             const MixerContext& context, const RandomKey& key) {
  SlotMixing mixing = slot_mixing(params, options, context, key);
  mixing.options.control = SlotControl::given;
  mixing.options.normalizer = means ? SlotNormalizer::read_time : SlotNormalizer::none;
  return mixing;
}

// Makes the control [B,S,H,N] of the tokens that are written. Not called where a state holds the
// source already.
using SlotControls = std::function<Variable()>;

// Attention over slots in the form of `options`, continuing from and leaving the state K [B,H,N,K],
// V [B,H,N,V] and, [B,H,N], `mass` (f64); for a given control `count` (i64: controls divided by
// their sum must be 0 or 1) or, with normalizer none, `used` (i64, 1: written).
// `value_controls` (causal: only with write_time): values are written by a control of their own,
// causal with a state `value_mass` of their own; slots count as used where keys are written.
// Without `accumulate` the state has normalizers only.
AttentionMixer::MixResult slot_mix(const SlotMixing& mixing, const MixerOptions& options,
                                   const MixInput& input, const MixerContext& context,
                                   const MixerState& state, const SlotControls& controls,
                                   const SlotControls& value_controls = {});

// The causal slot_mix() of the nodes of a tree that follows a text, whose controls are [N,1,H,S].
// On the host.
Variable slot_mix_tree(const SlotMixing& mixing, const MixInput& input,
                       std::span<const MixerNode> nodes, const MixerState& state,
                       const SlotControls& controls, const SlotControls& value_controls = {});

// The positions of the tokens that are written, i32 [B,S] (cross: counted in the source).
Tensor written_positions(const MixerOptions& options, const MixInput& input,
                         const MixerContext& context);

// Cost with that many slots, without the controls; the bytes of the state included.
MixerCost slot_mix_cost(const MixerOptions& options, int64_t slots, const MixerShape& shape);

// The literal definition: alpha(j, h, l) is the weight with which token j writes to slot l of head
// h.
struct SlotDefinition {
  int64_t slots = 0;
  double scale = 1;
  // Divisor of a reader's weights: their sum over the tokens that it sees (read), their sum up to
  // the writer (write), or 1 (none).
  enum class Divisor : uint8_t { read, write, none } divisor = Divisor::read;
  double floor = 0;  // of the divisor
  bool mask_empty = true;
  bool accumulate = true;  // false: reader i reads only the write of token i
};

// The definition's part of slot_mixing().
template <typename Params, typename Number>
SlotDefinition slot_definition_of(const Params& params, const ReferenceSequence<Number>& s) {
  SlotDefinition d;
  d.slots = params.slots;
  d.scale = params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K)));
  d.mask_empty = params.mask_empty;
  return d;
}

template <typename Number, typename Control, typename ValueControl>
std::vector<Number> slot_definition(const ReferenceSequence<Number>& s, const SlotDefinition& d,
                                    const Control& alpha, const ValueControl& value_alpha) {
  using Divisor = SlotDefinition::Divisor;
  const auto scale = static_cast<Number>(d.scale), floor = static_cast<Number>(d.floor);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  // Weights with which token j writes to slot l of this head: [N,S].
  std::vector<Number> writes(static_cast<size_t>(d.slots * s.S)), value_writes(writes.size());
  for (int64_t h = 0; h < s.H; ++h) {
    for (size_t n = 0; n < writes.size(); ++n) {
      const auto l = static_cast<int64_t>(n) / s.S, j = static_cast<int64_t>(n) % s.S;
      writes[n] = alpha(j, h, l);
      value_writes[n] = value_alpha(j, h, l);
    }
    for (int64_t i = 0; i < s.T; ++i) {
      std::vector<Number> logits(static_cast<size_t>(d.slots),
                                 -std::numeric_limits<Number>::infinity());
      std::vector<Number> values(static_cast<size_t>(d.slots * s.V), 0);
      for (int64_t l = 0; l < d.slots; ++l) {
        const Number* write = &writes[static_cast<size_t>(l * s.S)];
        const Number* value_write = &value_writes[static_cast<size_t>(l * s.S)];
        Number total = 0, value_total = 0, used = 0;
        for (int64_t j = 0; j < s.S; ++j) {
          if (!s.sees(i, j)) continue;
          total += write[j];
          value_total += value_write[j];
          used += std::abs(write[j]);
        }
        if (d.mask_empty && used == 0) continue;
        std::vector<Number> key(static_cast<size_t>(s.K), 0);
        Number running = 0, value_running = 0;
        for (int64_t j = 0; j < s.S; ++j) {
          if (!s.sees(i, j)) continue;
          running += write[j];
          value_running += value_write[j];
          if (!d.accumulate && j != i) continue;
          const auto divided = [&](Number weight, Number sum_to_writer, Number sum) {
            if (d.divisor == Divisor::none) return weight;
            const Number divisor =
                std::max(d.divisor == Divisor::write ? sum_to_writer : sum, floor);
            return divisor > 0 ? weight / divisor : Number{0};
          };
          const Number of_key = divided(write[j], running, total);
          const Number of_value = divided(value_write[j], value_running, value_total);
          for (int64_t c = 0; c < s.K; ++c) {
            key[static_cast<size_t>(c)] += of_key * s.key(j, h)[c];
          }
          for (int64_t c = 0; c < s.V; ++c) {
            values[static_cast<size_t>(l * s.V + c)] += of_value * s.value(j, h)[c];
          }
        }
        logits[static_cast<size_t>(l)] = scale * dot_product(key.data(), s.query(i, h), s.K);
      }
      const std::vector<Number> p = softmax_of(std::move(logits));
      for (int64_t l = 0; l < d.slots; ++l) {
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] +=
              p[static_cast<size_t>(l)] * values[static_cast<size_t>(l * s.V + c)];
        }
      }
    }
  }
  return y;
}

template <typename Number, typename Control>
std::vector<Number> slot_definition(const ReferenceSequence<Number>& s, const SlotDefinition& d,
                                    const Control& alpha) {
  return slot_definition(s, d, alpha, alpha);
}

// Limiting cases, over all tokens that a query sees: softmax attention with the usual scale, and
// the mean of the values.
std::vector<double> softmax_of_tokens(const ReferenceSequence<double>& s);
std::vector<double> mean_of_values(const ReferenceSequence<double>& s);

// To which slot each head wrote each token [S,H], as the mixer recorded it for a definition.
template <typename Number>
std::vector<int32_t> recorded_slots(const ReferenceSequence<Number>& s, const Tensor& all) {
  const std::vector<int32_t> slots = all.to_vector<int32_t>();
  const int64_t first = s.row * all.size(1) + (s.form == Form::cross ? 0 : s.begin);
  return {slots.begin() + first * s.H, slots.begin() + (first + s.S) * s.H};
}
// The control that writes token j of head h to slot [j,h] of `slots` [S,H].
template <typename Number>
auto one_slot_each(const ReferenceSequence<Number>& s, std::vector<int32_t> slots) {
  return [slots = std::move(slots), H = s.H](int64_t j, int64_t h, int64_t l) {
    return static_cast<Number>(slots[static_cast<size_t>(j * H + h)] == l ? 1 : 0);
  };
}

}  // namespace linnet
