// Linear attention with relu: parameters, mixer, registry entry.
#include "attention/relu/relu.h"

#include "attention/define.h"
#include "attention/mixer_support.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"linearized_llm",
     "EfficientViT's form as Linearized LLM uses it; its 1e-15 is below fp32's reach, hence 1e-6",
     {{"scale", "1"}, {"normalizer", "add"}, {"floor", "1e-6"}}},
    {"leapformer",
     "LeaPformer without re-weighting, so that differences isolate it",
     {{"scale", "null"}, {"floor", "0.1"}}},
    {"modular",
     "the LeaPformer authors' earlier code: floor 0.1 without scale",
     {{"scale", "1"}, {"floor", "0.1"}}}};

class ReluMixer : public AttentionMixer {
 public:
  ReluMixer(const ReluParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {
    attention_.feature_map = FeatureMap::relu;
    attention_.query_scale = params.scale.value_or(default_scale(options));
    attention_.normalizer = params.normalizer;
    attention_.epsilon = params.floor;
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    return kernelized_mix(attention_, options(), input, {}, context, state);
  }

 private:
  LinearAttentionOptions attention_;
};

}  // namespace

void ReluParams::describe(ConfigDescription<ReluParams>& d) {
  describe_preset(d, kPresets);
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
}

Mechanism relu_mechanism() {
  Mechanism facts;
  facts.name = "relu";
  facts.title = "Linear attention, feature map relu";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = relu(scale q_i) . relu(k_j)";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "Cai et al. 2023, EfficientViT; Linearized LLM; LeaPformer (its ReLU baseline)";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.variants = {"{preset: linearized_llm}", "{preset: leapformer}"};
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
  return define_mechanism<ReluParams, ReluMixer>(
      std::move(facts), [](const ReluParams& params, const auto& sequence) {
        return relu_reference(params, sequence);
      });
}

}  // namespace linnet
