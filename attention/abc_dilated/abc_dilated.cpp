// ABC with a dilated window: two memories that shift alternately: presets, registry entry.
#include "attention/abc_dilated/abc_dilated.h"

namespace linnet {

template <>
const std::vector<Preset>& AbcDilatedParams::presets() {
  static const std::vector<Preset> list = {
      {"abc", "as many slots as the paper's larger language models", {{"slots", "64"}}}};
  return list;
}

Mechanism abc_dilated_mechanism() {
  Mechanism facts;
  facts.name = "abc_dilated";
  facts.title = "Attention with bounded memory, dilated window";
  facts.equation =
      "two memories of N slots, for even and odd t; token t shifts its own by one slot and is\n"
      "written to the last: y_t = softmax attention over tokens t - 2 (N - 1), ..., t - 2, t";
  facts.complexity = "time 2 B H T N (K + V), memory of decoding 2 B H N (K + V)";
  facts.traits.causal = true;
  facts.cost_cases = {"{slots: 192}"};
  facts.limits = {{"a window that reaches everything gives softmax over every second token",
                   "{slots: 32}",
                   {Form::causal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t i, int64_t j) { return (i - j) % 2 == 0; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }}};
  return define_queue<2>(std::move(facts));
}

}  // namespace linnet
