// The short convolution on the primitive depthwise_conv, and its literal definition.
#include "attention/common/short_convolution.h"

#include "attention/primitives/block_attention/carry.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"

namespace linnet {
namespace {

constexpr const char* kSequences[] = {"q", "k", "v"};

}  // namespace

ShortConvolution::ShortConvolution(const ShortConvolutionSpec& spec, const MixerOptions& options,
                                   const ParameterScope& own)
    : spec_(spec), options_(options) {
  if (spec.taps == 0) return;
  const int64_t H = options.heads, K = options.head_width();
  const double bound = 1 / std::sqrt(static_cast<double>(spec.taps));
  for (const char* name : kSequences) {
    const std::string own_name = concat("conv.", name);
    filters_.push_back(own.parameter(own_name, {H, K, spec.taps}, init_uniform(bound)));
    if (!spec.bias) continue;
    biases_.push_back(own.parameter(own_name + "_bias", {H, K}, init_uniform(bound)));
  }
}

MixInput ShortConvolution::operator()(const MixInput& input, const MixerContext& context,
                                      const MixerState& state, MixerState& next) const {
  MixInput result = input;
  Variable* const sequences[] = {&result.q, &result.k, &result.v};
  const DType wide = sum_dtype(input.q.dtype());
  // With zeros at masked tokens.
  const auto activated = [&](const Variable& x) {
    const Tensor& mask = context.key_mask;
    if (!mask.defined()) return silu(x);
    return masked_fill(silu(x), mask.reshape({mask.size(0), mask.size(1), 1, 1}), 0);
  };
  if (spec_.taps == 0) {
    for (Variable* x : sequences) *x = activated(as_dtype(*x, wide));
    return result;
  }
  BlockAttentionContext at = block_context(options_, context);
  at.past_mask = mask_from_state(state, "conv_valid");
  CarriedTokens past;
  const auto mask = state.find("conv_valid");
  if (mask != state.end()) past.mask = mask->second;
  for (size_t i = 0; i < 3; ++i) {
    Variable& x = *sequences[i];
    past.tokens.push_back(carried(state, concat("conv_", kSequences[i]), x.dtype()));
    x = depthwise_conv(x, past.tokens[i], filters_[i], spec_.taps - 1, at);
    x = as_dtype(x, wide);
    if (spec_.bias) x = add(x, as_dtype(biases_[i], wide));
    x = activated(x);
  }
  const CarriedTokens after = carry_with_mask(past, {input.q, input.k, input.v}, context.key_mask,
                                              context.segments, spec_.taps - 1);
  for (size_t i = 0; i < 3; ++i) next[concat("conv_", kSequences[i])] = after.tokens[i];
  next["conv_valid"] = after.mask;
  return result;
}

void ShortConvolution::add_cost(const MixerShape& shape, MixerCost& cost) const {
  if (spec_.taps == 0) return;
  const auto rows = static_cast<double>(shape.batch);
  const double channels = 3 * static_cast<double>(options_.width);
  const auto element = static_cast<double>(size_of(shape.dtype));
  const BlockAttentionOptions band = conv_band(spec_.taps, spec_.taps - 1);
  cost.mixing += rows * channels * visible_pairs(band, shape.queries);
  cost.bytes += channels * static_cast<double>(spec_.taps + (spec_.bias ? 1 : 0)) * element;
  const auto kept = static_cast<double>(std::min(spec_.taps - 1, shape.queries));
  cost.bytes += rows * kept * (channels * element + sizeof(int64_t));
}

template <typename Number>
ReferenceSequence<Number> short_convolution_definition(const ShortConvolutionSpec& spec,
                                                       const ReferenceSequence<Number>& s) {
  ReferenceSequence<Number> result = s;
  std::vector<Number>* const sequences[] = {&result.q, &result.k, &result.v};
  for (size_t which = 0; which < 3; ++which) {
    std::vector<Number>& y = *sequences[which];
    const std::vector<Number> x = y;
    const std::string name = concat("conv.", kSequences[which]);
    const int64_t channels = s.H * s.K;
    for (int64_t t = 0; t < s.T; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        Number total = 0;
        for (int64_t n = 0; n < spec.taps; ++n) {
          const int64_t j = t - spec.taps + 1 + n;
          if (j < 0 || s.key_valid[static_cast<size_t>(j)] == 0) continue;
          total += s.parameter(name)[static_cast<size_t>(c * spec.taps + n)] *
                   x[static_cast<size_t>(j * channels + c)];
        }
        if (spec.taps == 0) total = x[static_cast<size_t>(t * channels + c)];
        if (spec.taps > 0 && spec.bias)
          total += s.parameter(name + "_bias")[static_cast<size_t>(c)];
        y[static_cast<size_t>(t * channels + c)] = total / (1 + std::exp(-total));
      }
    }
  }
  return result;
}
template ReferenceSequence<float> short_convolution_definition(const ShortConvolutionSpec&,
                                                               const ReferenceSequence<float>&);
template ReferenceSequence<double> short_convolution_definition(const ShortConvolutionSpec&,
                                                                const ReferenceSequence<double>&);

}  // namespace linnet
