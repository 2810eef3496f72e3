#include "layers/block.h"

#include "autograd/arithmetic.h"
#include "autograd/layout.h"
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
    : gated_(config.has_gate()),
      activation_(config.activation == "swiglu"  ? Activation::silu
                  : config.activation == "geglu" ? Activation::gelu_tanh
                                                 : activation_from_name(config.activation)),
      dropout_(config.activation_dropout),
      site_(scope.prefix()) {
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
  if (gated_ && activation_ == Activation::silu) {
    hidden = silu_multiply(linear(x, gate_weight_, gate_bias_), hidden);
  } else if (gated_) {
    hidden = multiply(linear(x, gate_weight_, gate_bias_, activation_), hidden);
  }
  hidden = dropout(hidden, drop);
  return linear(hidden, out_weight_, out_bias_);
}

Block::Block(const ModelConfig& config, const ParameterScope& scope,
             std::unique_ptr<TokenMixer> mixer, std::unique_ptr<TokenMixer> cross)
    : pre_(config.norm_position == "pre"),
      dropout_(config.dropout),
      site_(scope.prefix()),
      mixer_(std::move(mixer)),
      cross_(std::move(cross)),
      mixer_norm_(config, scope.child("attention_norm")) {
  if (cross_ != nullptr) cross_norm_ = Norm(config, scope.child("cross_attention_norm"));
  if (mixer_->replaces_feed_forward()) return;
  feed_forward_norm_ = Norm(config, scope.child("feed_forward_norm"));
  feed_forward_.emplace(config, scope.child("feed_forward"));
}

std::vector<const TokenMixer*> Block::mixers() const {
  std::vector<const TokenMixer*> all{mixer_.get()};
  if (cross_ != nullptr) all.push_back(cross_.get());
  return all;
}

std::pair<Variable, Variable> Block::entered(ResidualSum x) const {
  const ResidualSum parts = std::move(x);  // kept no longer than this
  if (pre_) return mixer_norm_.of_sum(parts);
  const Variable value = parts.value();
  return {value, value};
}

BlockResult Block::operator()(ResidualSum x, const Variable& source, const MixerContext& context,
                              const MixerState& state, const MixerState& cross) const {
  const ActivationsIn activations(x.residual.dtype());
  auto [sum, read] = entered(std::move(x));
  MixerResult mixed = mixer_->forward(read, context, state);
  read = {};  // not kept until the end
  return after_mixing(sum, context, std::move(mixed), [&](const Variable& normed) {
    // One sum of the source's gradients per block, as a recomputed block gives it: the same bits.
    const Variable own = source.defined() ? reshape(source, source.shape()) : source;
    return cross_->forward_cross(normed, own, context, cross);
  });
}

ResidualSum Block::rows(ResidualSum x, const MixerContext& context, std::span<MixerRow> rows,
                        std::span<const MixerState* const> sources) const {
  const ActivationsIn activations(x.residual.dtype());
  const auto [sum, read] = entered(std::move(x));
  MixerResult mixed;
  mixed.y = mixer_->forward_rows(read, context.positions, rows);
  return after_mixing(sum, context, std::move(mixed),
                      [&](const Variable& normed) {
                        MixerResult of_source;
                        of_source.y = cross_->forward_cross_rows(normed, rows, sources);
                        return of_source;
                      })
      .x;
}

Block::Tree Block::tree(ResidualSum x, const MixerContext& context, std::span<MixerNode> nodes,
                        const MixerState& state, TreeStates states) const {
  const ActivationsIn activations(x.residual.dtype());
  const auto [sum, read] = entered(std::move(x));
  TreeMix tree = mixer_->forward_tree(read, context.positions, nodes, state, states);
  MixerResult mixed;
  mixed.y = tree.y;
  BlockResult after = after_mixing(sum, context, std::move(mixed), [](const Variable&) {
    return MixerResult{};  // no encoder's source is read in trees
  });
  return {std::move(after.x), std::move(tree.state_after)};
}

template <typename Cross>
BlockResult Block::after_mixing(const Variable& x, const MixerContext& context, MixerResult mixed,
                                const Cross& cross) const {
  const auto dropped = [&](const char* residual) {
    return dropout_spec(dropout_, site_ + residual, context);
  };
  const DropoutSpec first = dropped(".attention_residual"),
                    crossing = dropped(".cross_attention_residual"),
                    second = dropped(".feed_forward_residual");
  FirstNonFinite::look(site_, "attention", mixed.y.value());
  MixerState encoded;
  const auto crossed = [&](const Variable& normed) {
    MixerResult read = cross(normed);
    mixed.streams.merge(read.streams);
    encoded = std::move(read.state);
    FirstNonFinite::look(site_, "cross_attention", read.y.value());
    return read.y;
  };
  const auto feed_forward = [&](const Variable& normed) {
    Variable y = (*feed_forward_)(normed, context);
    FirstNonFinite::look(site_, "feed_forward", y.value());
    return y;
  };
  const auto with = [&](ResidualSum y) {
    if (FirstNonFinite::looks()) {
      y = {y.value()};
      FirstNonFinite::look(site_, "", y.residual.value());
    }
    return BlockResult{std::move(y), std::move(mixed.state), std::move(mixed.streams),
                       std::move(encoded)};
  };
  if (pre_) {
    ResidualSum next{x, mixed.y, first};  // what follows
    if (cross_ != nullptr) {
      const auto [sum, normed] = cross_norm_.of_sum(next);
      next = {sum, crossed(normed), crossing};
    }
    if (!feed_forward_) return with(std::move(next));
    const auto [sum, normed] = feed_forward_norm_.of_sum(next);
    return with({sum, feed_forward(normed), second});
  }
  Variable middle = mixer_norm_.of_sum({x, mixed.y, first}).second;
  if (cross_ != nullptr) middle = cross_norm_.of_sum({middle, crossed(middle), crossing}).second;
  if (!feed_forward_) return with({middle});
  return with({feed_forward_norm_.of_sum({middle, feed_forward(middle), second}).second});
}

}  // namespace linnet
