// Attention over the last tokens that were pushed to a queue: ABC's sliding window (one queue) and
// dilated window (two alternating queues), whose memories shift.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/common/mixer_support.h"
#include "attention/define.h"

namespace linnet {

struct QueueAttention {
  int64_t queues = 1;
  int64_t slots = 32;  // tokens that a queue holds, the reader's own included
  // Places never filled are left out; otherwise they are zeros that take softmax weight.
  bool mask_empty = true;
  double scale = 1;
  // Dropout of the softmax weights in this call.
  double dropout = 0;
  RandomKey dropout_key = {};
};

// Causal: token t reads the queue to which it is pushed. Cross (one queue): all queries read the
// last valid tokens of the source. Padded tokens are not pushed. Leaves the state k, v [B, queues *
// places, H, .] and their mask `valid`; causal also `pushed` [B, queues], the number of tokens
// pushed, which names the draws of dropout, and with several queues `phase` [B], the queue of the
// next token. Throws UsageError for packed documents without mask_empty: only a row's beginning has
// places to fill.
AttentionMixer::MixResult queue_attention(const QueueAttention& attention,
                                          const MixerOptions& options, const MixInput& input,
                                          const MixerContext& context, const MixerState& state);
MixerCost queue_attention_cost(const QueueAttention& attention, const MixerOptions& options,
                               const MixerShape& shape);

// The mechanisms: parameters and mixer.
template <int64_t kQueues>
struct QueueParams {
  std::string preset = "none";
  int64_t slots = 32;
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  // Each mechanism's own.
  static const std::vector<Preset>& presets();
  static void describe(ConfigDescription<QueueParams>& d) {
    describe_preset(d, presets());
    d.field("slots", &QueueParams::slots,
            kQueues == 1 ? "memory slots N: the last N tokens, the token itself included"
                         : "memory slots N of each queue: every second token, itself included")
        .range(1, 1 << 20)
        .unit("tokens");
    d.field(
        "mask_empty", &QueueParams::mask_empty,
        "places not yet filled are left out; otherwise they are zeros that take softmax weight");
    describe_scale(d, "factor of q . k; null: 1/sqrt(K)");
    describe_dropout(d);
  }
  MixerTraits traits(MixerTraits traits) const {
    if (!mask_empty) {
      traits.exempt["packing"] = "zeros stand before the first token of a row: packing is refused";
    }
    return traits;
  }
};

template <int64_t kQueues>
class QueueMixer : public AttentionMixer {
 public:
  QueueMixer(const QueueParams<kQueues>& params, const MixerOptions& options,
             const MixerScope& scope)
      : AttentionMixer(options, scope),
        attention_{kQueues, params.slots, params.mask_empty,
                   params.scale.value_or(default_scale(options))},
        dropout_(params.dropout.value_or(options.dropout)) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    QueueAttention attention = attention_;
    if (context.training) {
      attention.dropout = dropout_;
      attention.dropout_key = draw_key(context);
    }
    return queue_attention(attention, options(), input, context, state);
  }
  MixerCost mix_cost(const MixerShape& shape) const override {
    return queue_attention_cost(attention_, options(), shape);
  }

 private:
  QueueAttention attention_;
  double dropout_;
};

// The literal definition.
template <int64_t kQueues, typename Number>
std::vector<Number> queue_definition(const QueueParams<kQueues>& params,
                                     const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const bool cross = s.form == Form::cross;
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t i = 0; i < s.T; ++i) {
    std::vector<int64_t> queue;
    for (int64_t j = cross ? s.S - 1 : i; j >= 0; j -= kQueues) {
      if (s.sees(i, j) && static_cast<int64_t>(queue.size()) < params.slots) queue.push_back(j);
    }
    for (int64_t h = 0; h < s.H; ++h) {
      std::vector<Number> logits;
      for (const int64_t j : queue) {
        logits.push_back(scale * dot_product(s.query(i, h), s.key(j, h), s.K));
      }
      if (!params.mask_empty) logits.resize(static_cast<size_t>(params.slots), 0);
      const std::vector<Number> p = softmax_of(std::move(logits));
      for (size_t n = 0; n < queue.size(); ++n) {
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += p[n] * s.value(queue[n], h)[c];
        }
      }
    }
  }
  return y;
}

// The entry of a mechanism, with the facts common to both.
template <int64_t kQueues>
Mechanism define_queue(Mechanism facts) {
  facts.sources = "Peng et al. 2022, ABC";
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = QueueParams<kQueues>::presets();
  facts.variants = {"{slots: 1}", "{slots: 7, mask_empty: false, scale: 1}"};
  facts.limits.push_back({"a window of one token returns its value",
                          "{slots: 1}",
                          {Form::causal},
                          {},
                          [](const ReferenceSequence<double>& s) { return s.v; }});
  return define_mechanism<QueueParams<kQueues>, QueueMixer<kQueues>>(
      std::move(facts),
      [](const auto& params, const auto& sequence) { return queue_definition(params, sequence); });
}

}  // namespace linnet
