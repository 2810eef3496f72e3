// Linear attention with elu + 1: parameters, mixer, literal definition, registry entry.
#include "attention/linear/linear.h"

#include "attention/define.h"
#include "attention/mixer_support.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {{"fast_transformers",
                                       "the authors' library adds 1e-6 to the denominator",
                                       {{"normalizer", "add"}, {"floor", "1e-6"}}}};

class LinearMixer : public AttentionMixer {
 public:
  LinearMixer(const LinearParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {
    attention_.feature_map = FeatureMap::elu1;
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

template <typename Number>
std::vector<Number> definition(const LinearParams& params, const ReferenceSequence<Number>& s) {
  const auto scale =
      static_cast<Number>(params.scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  const auto phi = [](Number x) { return x > 0 ? x + 1 : std::exp(x); };
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        Number a = 0;
        for (int64_t c = 0; c < s.K; ++c) a += phi(scale * s.query(i, h)[c]) * phi(s.key(j, h)[c]);
        return a;
      },
      [&](Number x) { return reference_denominator(params.normalizer, params.floor, x); });
}

// The mean of the values that query i sees.
std::vector<double> mean_of_values(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return std::max(x, 1e-6); });
}

}  // namespace

void LinearParams::describe(ConfigDescription<LinearParams>& d) {
  describe_preset(d, kPresets);
  describe_scale(d, "factor of q before the feature map; null: 1/sqrt(K)");
  describe_normalizer(d);
}

Mechanism linear_mechanism() {
  Mechanism facts;
  facts.name = "linear";
  facts.title = "Linear attention, feature map elu + 1";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = phi(scale q_i) . phi(k_j),\n"
      "phi(x) = elu(x) + 1";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "Katharopoulos et al. 2020, Transformers are RNNs";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = std::string("T");
  facts.presets = kPresets;
  facts.variants = {"{normalizer: add, floor: 0.1, scale: null}"};
  facts.limits = {{"equal keys give the mean of the values",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "k.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   mean_of_values}};
  return define_mechanism<LinearParams, LinearMixer>(
      std::move(facts), [](const LinearParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
