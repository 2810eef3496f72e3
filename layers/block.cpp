#include "layers/block.h"

#include "autograd/linear.h"
#include "core/kernel_choice.h"
#include "layers/first_non_finite.h"

namespace linnet {

Norm::Norm(const ModelConfig& config, const ParameterScope& scope) {
  spec_.kind = config.norm == "layer" ? NormKind::layer
               : config.norm == "rms" ? NormKind::rms
                                      : NormKind::scale;
  spec_.epsilon = config.norm_epsilon;
  gain_ =
      scope.parameter("gain", {spec_.kind == NormKind::scale ? 1 : config.width}, init_constant(1));
  if (spec_.kind == NormKind::layer) {
    bias_ = scope.parameter("bias", {config.width}, init_constant(0));
  }
}

FeedForward::FeedForward(const ModelConfig& config, const ParameterScope& scope)
    : gated_(config.activation == "swiglu"),
      dropout_(config.activation_dropout),
      site_(scope.prefix()) {
  if (!gated_) activation_ = activation_from_name(config.activation);
  const int64_t width = config.width;
  const int64_t hidden = config.hidden_width();
  const auto weight = [&](const char* name, int64_t out, int64_t in) {
    return scope.parameter(std::string(name) + ".weight", {out, in},
                           projection_init(config.init, 1, in, out));
  };
  const auto bias = [&](const char* name, int64_t out) {
    return config.bias ? scope.parameter(std::string(name) + ".bias", {out}, init_constant(0))
                       : Variable();
  };
  in_weight_ = weight("in", hidden, width);
  in_bias_ = bias("in", hidden);
  if (gated_) {
    gate_weight_ = weight("gate", hidden, width);
    gate_bias_ = bias("gate", hidden);
  }
  out_weight_ = weight("out", width, hidden);
  out_bias_ = bias("out", width);
}

Variable FeedForward::operator()(const Variable& x, const MixerContext& context) const {
  const DropoutSpec drop = dropout_spec(dropout_, site_, context);
  if (!gated_ && activation_ == Activation::gelu_tanh && drop.probability == 0) {
    return gelu_tanh_feed_forward(x, in_weight_, in_bias_, out_weight_, out_bias_);
  }
  Variable hidden = linear(x, in_weight_, in_bias_, gated_ ? Activation::none : activation_);
  if (gated_) hidden = silu_multiply(linear(x, gate_weight_, gate_bias_), hidden);
  hidden = dropout(hidden, drop);
  return linear(hidden, out_weight_, out_bias_);
}

Block::Block(const ModelConfig& config, const ParameterScope& scope,
             std::unique_ptr<TokenMixer> mixer)
    : pre_(config.norm_position == "pre"),
      dropout_(config.dropout),
      site_(scope.prefix()),
      mixer_(std::move(mixer)),
      mixer_norm_(config, scope.child("attention_norm")) {
  if (mixer_->replaces_feed_forward()) return;
  feed_forward_norm_ = Norm(config, scope.child("feed_forward_norm"));
  feed_forward_.emplace(config, scope.child("feed_forward"));
}

BlockResult Block::operator()(const Variable& x, const MixerContext& context,
                              const MixerState& state) const {
  const DropoutSpec first = dropout_spec(dropout_, site_ + ".attention_residual", context);
  const DropoutSpec second = dropout_spec(dropout_, site_ + ".feed_forward_residual", context);
  const ActivationsIn activations(x.dtype());
  MixerResult mixed = mixer_->forward(pre_ ? mixer_norm_(x) : x, context, state);
  FirstNonFinite::look(site_, "attention", mixed.y.value());
  const auto feed_forward = [&](const Variable& normed) {
    Variable y = (*feed_forward_)(normed, context);
    FirstNonFinite::look(site_, "feed_forward", y.value());
    return y;
  };
  const auto with = [&](const Variable& y) {
    FirstNonFinite::look(site_, "", y.value());
    return BlockResult{y, std::move(mixed.state), std::move(mixed.streams)};
  };
  if (pre_) {
    if (!feed_forward_) return with(residual_dropout(x, mixed.y, first));
    const auto [sum, normed] = feed_forward_norm_.after_residual(x, mixed.y, first);
    return with(residual_dropout(sum, feed_forward(normed), second));
  }
  const Variable middle = mixer_norm_.after_residual(x, mixed.y, first).second;
  if (!feed_forward_) return with(middle);
  return with(feed_forward_norm_.after_residual(middle, feed_forward(middle), second).second);
}

}  // namespace linnet
