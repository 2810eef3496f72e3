// Linear attention with relu: presets, limits, registry entry.
#include "attention/relu/relu.h"

namespace linnet {

template <>
const std::vector<Preset>& ReluParams::presets() {
  static const std::vector<Preset> list = {
      {"linearized_llm",
       "EfficientViT's form as Linearized LLM uses it; its 1e-15 is below fp32's reach, hence 1e-6",
       {{"scale", "1"}, {"normalizer", "add"}, {"floor", "1e-6"}}},
      {"leapformer",
       "LeaPformer without re-weighting, so that differences isolate it",
       {{"scale", "null"}, {"floor", "0.1"}}},
      {"modular",
       "the LeaPformer authors' earlier code: floor 0.1 without scale",
       {{"scale", "1"}, {"floor", "0.1"}}}};
  return list;
}

Mechanism relu_mechanism() {
  Mechanism facts;
  facts.name = "relu";
  facts.title = "Linear attention, feature map relu";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = relu(scale q_i) . relu(k_j)";
  facts.sources = "Cai et al. 2023, EfficientViT; Linearized LLM; LeaPformer (its ReLU baseline)";
  facts.variants = {"{preset: linearized_llm}", "{preset: leapformer}", "{normalizer: none}"};
  facts.limits = {{"equal positive keys give the mean of the values",
                   "{scale: 1}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     const bool keys = name == "k.weight" || name == "k.bias";
                     const bool queries = name == "q.weight" || name == "q.bias";
                     if (keys || queries) {
                       std::fill(values.begin(), values.end(), name.ends_with("bias") ? 1.0 : 0.0);
                     }
                   },
                   [](const ReferenceSequence<double>& s) {
                     return linear_attention_definition(
                         s, [](int64_t, int64_t, int64_t) { return 1.0; },
                         [](double x) { return x; });
                   }}};
  return define_feature_map<FeatureMap::relu>(std::move(facts));
}

}  // namespace linnet
