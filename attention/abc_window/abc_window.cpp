// ABC with a sliding window: a memory whose slots shift with every token: presets, registry entry.
#include "attention/abc_window/abc_window.h"

namespace linnet {

template <>
const std::vector<Preset>& AbcWindowParams::presets() {
  static const std::vector<Preset> list = {
      {"abc", "language modelling: 64 slots (32 in the smaller setting)", {{"slots", "64"}}},
      {"abc_translation", "machine translation: 32 slots, causal and cross", {{"slots", "32"}}}};
  return list;
}

Mechanism abc_window_mechanism() {
  Mechanism facts;
  facts.name = "abc_window";
  facts.title = "Attention with bounded memory, sliding window";
  facts.equation =
      "K~_t = U K~_{t-1} + e_N k_t with U the shift by one slot, V~ likewise\n"
      "y_t = sum_l softmax_l(scale q_t . K~_tl) V~_tl: softmax over the last N valid tokens";
  facts.complexity = "time 2 B H T N (K + V), memory of decoding B H N (K + V)";
  facts.traits.causal = facts.traits.cross = true;
  facts.cost_cases = {"{slots: 256}"};
  facts.limits = {{"a window that reaches everything gives softmax attention",
                   "{slots: 64}",
                   {Form::causal, Form::cross},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return define_queue<1>(std::move(facts));
}

}  // namespace linnet
