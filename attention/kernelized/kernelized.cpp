// Kernelized attention: parameters, mixer, literal definition, registry entry.
#include "attention/kernelized/kernelized.h"

#include "attention/common/gaussian_kernel.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"skyformer", "Skyformer's baseline: the defaults", {}},
    {"lavo", "LAVO's table 11, which repeats Skyformer's results: the defaults", {}}};

class KernelizedMixer : public AttentionMixer {
 public:
  KernelizedMixer(const KernelizedParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    BlockAttentionContext block = block_context(options(), context);
    set_dropout(block, params_.dropout, options(), context, draw_key(context));
    const Variable y = gaussian_attention(input.q, input.k, input.v, block);
    return {as_dtype(y, input.q.dtype()), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    // The products have two channels more, for the squares.
    const auto pairs = static_cast<double>(shape.batch * shape.queries * shape.queries);
    const auto widths = static_cast<double>(options().heads * (2 * options().head_width() + 2));
    return {.mixing = pairs * widths};
  }

 private:
  KernelizedParams params_;
};

template <typename Number>
std::vector<Number> definition(const ReferenceSequence<Number>& s) {
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        return gaussian_kernel(s.query(i, h), s.key(j, h), s.K);
      },
      [](Number) { return Number{1}; });
}

// The other form of the paper: softmax's weights, divided by the roots of the weights that queries
// and keys give themselves. D_Q^(-1/2) exp(Q K^T / sqrt(K)) D_K^(-1/2) V.
std::vector<double> symmetrised_softmax(const ReferenceSequence<double>& s) {
  const double scale = 1 / std::sqrt(static_cast<double>(s.K));
  const auto own = [&](const double* x) { return std::exp(-scale * dot_product(x, x, s.K) / 2); };
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        const double *q = s.query(i, h), *k = s.key(j, h);
        return own(q) * std::exp(scale * dot_product(q, k, s.K)) * own(k);
      },
      [](double) { return 1.0; });
}

}  // namespace

void KernelizedParams::describe(ConfigDescription<KernelizedParams>& d) {
  describe_preset(d, kPresets);
  describe_dropout(d);
}

Mechanism kernelized_mechanism() {
  Mechanism facts;
  facts.name = "kernelized";
  facts.title = "Kernelized attention: a Gaussian kernel of queries and keys, not normalised";
  facts.equation = "y_i = sum_j exp(-|q_i - k_j|^2 / (2 sqrt(K))) v_j";
  facts.complexity = "time 2 B H T^2 K";
  facts.sources = "Chen et al. 2021, Skyformer (Kernelized Attention)";
  facts.traits.noncausal = true;
  facts.traits.growth = std::string("T^2");
  facts.presets = kPresets;
  facts.limits = {
      {"equals exp(Q K^T / sqrt(K)), divided on both sides by the roots of its diagonals",
       "{}",
       {Form::noncausal},
       {},
       symmetrised_softmax},
      {"equal queries and keys give the sum of the values",
       "{}",
       {Form::noncausal},
       [](const std::string& name, std::vector<double>& values) {
         if (name == "q.weight" || name == "k.weight") std::fill(values.begin(), values.end(), 0);
         if (name == "q.bias" || name == "k.bias") std::fill(values.begin(), values.end(), 0.7);
       },
       [](const ReferenceSequence<double>& s) {
         return linear_attention_definition(
             s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double) { return 1.0; });
       }}};
  return define_mechanism<KernelizedParams, KernelizedMixer>(
      std::move(facts),
      [](const KernelizedParams&, const auto& sequence) { return definition(sequence); });
}

}  // namespace linnet
