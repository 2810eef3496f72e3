#include "attention/linformer/one_kv_head.h"

#include <numbers>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "layers/projection_bias.h"

namespace linnet {

OneKvHead::OneKvHead(const MixerOptions& options, const ParameterScope& scope) : options_(options) {
  const int64_t E = options.width, K = options.head_width();
  const auto weight = [&](const char* name) {
    return scope.parameter(name, {K, E},
                           projection_init(options.init, 1 / std::numbers::sqrt2, E, K));
  };
  key_ = weight("kv_head.k.weight");
  value_ = weight("kv_head.v.weight");
  if (!options.bias) return;
  const Initializer initial = projection_bias_init(options.init, E);
  key_bias_ = scope.parameter("kv_head.k.bias", {K}, initial);
  value_bias_ = scope.parameter("kv_head.v.bias", {K}, initial);
}

MixInput OneKvHead::with_keys(const MixInput& input, const MixerContext& context) const {
  const bool cross = options_.form == Form::cross;
  const Variable& read = cross ? input.source : input.x;
  if (input.k.defined() || !read.defined()) return input;
  MixInput made = input;
  made.k = heads(read, key_, key_bias_);
  made.v = heads(read, value_, value_bias_);
  if (!cross && options_.rotary_width > 0) {
    const Tensor& own = context.key_positions;
    made.k = rotary(made.k, own.defined() ? own : context.positions, options_.rotary_width);
  }
  return made;
}

MixerCost OneKvHead::cost(const MixerShape& shape) const {
  const auto E = static_cast<double>(options_.width),
             K = static_cast<double>(options_.head_width());
  MixerCost cost;
  cost.projections = 2 * E * E * static_cast<double>(shape.batch * shape.keys);
  cost.bytes = 2 * K * (E + (options_.bias ? 1 : 0)) * static_cast<double>(size_of(shape.dtype));
  return cost;
}

// By a weight whose rows are those of the one head, once for each head: gradients of heads are
// summed by the lookup.
Variable OneKvHead::heads(const Variable& x, const Variable& weight, const Variable& bias) const {
  const int64_t E = options_.width, H = options_.heads, K = options_.head_width();
  const Tensor rows = counted_positions(H, K, 0, x.value().device());
  const Variable all = reshape(embedding(rows, weight), {E, E});
  const Variable shift =
      bias.defined() ? reshape(embedding(rows, reshape(bias, {K, 1})), {E}) : Variable();
  return reshape(linear(x, all, shift), {x.size(0), x.size(1), H, K});
}

}  // namespace linnet
