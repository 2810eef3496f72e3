// Mamba-2: parameters, mixer, literal definition, registry entry.
#include "attention/mamba2/mamba2.h"

#include "attention/common/decayed_state_definition.h"
#include "attention/common/feature_map_mechanism.h"
#include "attention/common/gated_norm.h"
#include "attention/common/short_convolution.h"
#include "attention/common/step_decay.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {{"released", "state-spaces/mamba, ngroups = heads", {}}};

struct Mamba2Params {
  std::string preset = "none";
  int64_t conv = 4;
  bool gate = true;
  double epsilon = 1e-5;
  ShortConvolutionSpec convolution() const { return {conv, true}; }
  GatedNormSpec norm() const { return {gate, epsilon, true}; }
  static void describe(ConfigDescription<Mamba2Params>& d) {
    describe_preset(d, kPresets);
    describe_short_convolution(d);
    describe_gated_norm(d);
  }
};

class Mamba2Mixer : public AttentionMixer {
 public:
  Mamba2Mixer(const Mamba2Params& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope),
        convolution_(params.convolution(), options, scope.own),
        decay_(options, scope.own),
        norm_(params.norm(), options, scope.own),
        skip_(scope.own.parameter("rates.skip", {options.heads, 1}, init_constant(1))) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    MixerState tokens;
    const MixInput in = convolution_(input, context, state, tokens);
    const auto [step, log_decay] = decay_(input.x);
    const auto narrow = [&](const Variable& x) { return as_dtype(x, input.q.dtype()); };
    const MixInput read{narrow(in.q), narrow(multiply(in.k, step)), narrow(in.v), input.x, {}};
    MixResult result = feature_map_mix(attention_, options(), read, {}, context, state, log_decay);
    const Variable y = add(as_dtype(result.y, step.dtype()), multiply(in.v, skip_));
    tokens.merge(result.state);
    return {narrow(norm_(y, input.x)), tokens};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    convolution_.add_cost(shape, cost);
    decay_.add_cost(shape, cost);
    norm_.add_cost(shape, cost);
    cost.bytes += static_cast<double>(options().heads) * size_of(sum_dtype(shape.dtype));
    return cost;
  }

 private:
  ShortConvolution convolution_;
  StepDecay decay_;
  GatedNorm norm_;
  Variable skip_;
  LinearAttentionOptions attention_ = sums_without_denominator(1);
};

template <typename Number>
std::vector<Number> definition(const Mamba2Params& params, const ReferenceSequence<Number>& given) {
  ReferenceSequence<Number> s = short_convolution_definition(params.convolution(), given);
  for (int64_t i = 0; i < s.T * s.H * s.K; ++i) {
    s.k[static_cast<size_t>(i)] *= step_decay_definition(s, i / s.K / s.H, i / s.K % s.H).first;
  }
  std::vector<Number> y = decayed_state_definition(
      s, [&](int64_t t, int64_t h, int64_t) { return step_decay_definition(s, t, h).second; });
  for (int64_t i = 0; i < s.T * s.H * s.V; ++i) {
    y[static_cast<size_t>(i)] +=
        s.parameter("rates.skip")[static_cast<size_t>(i / s.V % s.H)] * s.v[static_cast<size_t>(i)];
  }
  apply_gated_norm(params.norm(), s, y);
  return y;
}

}  // namespace

Mechanism mamba2_mechanism() {
  Mechanism facts;
  facts.name = "mamba2";
  facts.title = "Mamba-2: a state that fades by steps made of the input (state space duality)";
  facts.equation =
      "S_t = exp(-e^r d_t) S_{t-1} + d_t k_t v_t^T, d_t = softplus(x_t W + b), q, k, v convolved,\n"
      "y_t = RMSNorm((S_t^T q_t + D v_t) * silu(x_t W'))";
  facts.complexity = "time B H T (2 K V + conv (2 K + V)), memory of decoding B H K (V + 1)";
  facts.sources = "Dao and Gu 2024, Transformers are SSMs (Mamba-2); state-spaces/mamba";
  facts.traits = recurrent_traits();
  facts.presets = kPresets;
  facts.variants = {"{conv: 0, gate: false}", "{conv: 2, epsilon: 0.1}"};
  facts.limits = {limit_without_decay("{conv: 0, gate: false}",
                                      {{"step.weight", 0},
                                       {"rates.step_bias", std::log(std::expm1(1.0))},
                                       {"rates.log_rate", -1e9},
                                       {"rates.skip", 0}},
                                      1e-5, true)};
  return define_mechanism<Mamba2Params, Mamba2Mixer>(
      std::move(facts), [](const auto& params, const auto& s) { return definition(params, s); });
}

}  // namespace linnet
