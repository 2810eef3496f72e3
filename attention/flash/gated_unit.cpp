#include "attention/flash/gated_unit.h"

#include <cmath>

#include "attention/common/block_diagonal.h"
#include "attention/common/distance_ids.h"
#include "attention/flash/token_shift.h"
#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"

namespace linnet {
namespace {

constexpr double kDeviation = 0.02;  // of gamma

}  // namespace

void GatedUnitOptions::check(const ConfigNode& at) const {
  if (rope_width && rope != "partial") {
    throw located_error(at.location_of("rope_width"), "rope_width has no effect with rope: ", rope,
                        "; remove it, or set rope: partial");
  }
  if (rope_width && (*rope_width > key_width || *rope_width % 2 != 0)) {
    throw located_error(at.location_of("rope_width"),
                        "rope_width is an even number of the key_width ", key_width,
                        " channels, got ", *rope_width);
  }
  if (rotary_width() % 2 != 0) {
    throw located_error(at.location_of("key_width"),
                        "rotary positions rotate channels in pairs: ", "key_width ", key_width,
                        " must be even, or rope: none");
  }
  if (bias == "rope" && key_width % 2 != 0) {
    throw located_error(at.location_of("bias"), "bias: rope rotates channels in pairs: key_width ",
                        key_width, " must be even");
  }
}

GatedUnit::GatedUnit(const char* mechanism, const GatedUnitOptions& params,
                     const MixerOptions& options, const MixerScope& scope,
                     const std::vector<std::string>& copies, int64_t reach)
    : params_(params), options_(options), site_(scope.own.prefix()), reach_(reach) {
  const int64_t width = options.width, values = params.value_width(options), s = params.key_width;
  require_usage(width > 0, mechanism, ": width must be positive");
  require_usage(options.rotary_width == 0 || params.rope != "none", mechanism,
                ": the model has rotary positions, but rope: none leaves them out; choose one");
  const auto weight = [&](const char* name, int64_t out, int64_t in) {
    return scope.own.parameter(concat(name, ".weight"), {out, in},
                               projection_init(options.init, 1, in, out));
  };
  const auto bias = [&](const char* name, int64_t out) {
    return options.bias ? scope.own.parameter(concat(name, ".bias"), {out}, init_constant(0))
                        : Variable();
  };
  value_weight_ = weight("value", values, width);
  value_bias_ = bias("value", values);
  gate_weight_ = weight("gate", values, width);
  gate_bias_ = bias("gate", values);
  shared_weight_ = weight("shared", s, width);
  shared_bias_ = bias("shared", s);
  for (const std::string& copy : copies) {
    Affine& affine = affine_.emplace_back();
    affine.gamma = scope.own.parameter(copy + ".gamma", {s}, init_normal(kDeviation));
    affine.beta = scope.own.parameter(copy + ".beta", {s}, init_constant(0));
  }
  if (params.bias == "t5") {
    distance_bias_ = scope.own.parameter("distance_bias", {kDistanceBuckets, 1}, init_normal(1));
  } else if (params.bias == "toeplitz") {
    require_usage(reach > 0, mechanism, ": bias: toeplitz needs a known context");
    const bool causal = options.form == Form::causal;
    distance_bias_ = scope.own.parameter("distance_bias", {1, causal ? reach : 2 * reach - 1},
                                         init_normal(kDeviation));
  } else if (params.bias == "rope") {
    distance_query_ = scope.own.parameter("distance_query", {1, s}, init_normal(kDeviation));
    distance_key_ = scope.own.parameter("distance_key", {s, 1}, init_normal(kDeviation));
  }
  out_weight_ = weight("out", width, values);
  out_bias_ = bias("out", width);
}

GatedUnit::Parts GatedUnit::project(const Variable& x, const MixerContext& context,
                                    const MixerState& state) const {
  require(x.shape().rank() == 3 && x.size(2) == options_.width,
          "gated attention unit: expected x [B, T, ", options_.width, "], got ", x.shape());
  if (!params_.token_shift) return maps(x, context.positions);
  ShiftedTokens shifted = shift_tokens(x, context, state, options_.form == Form::causal);
  Parts parts = maps(shifted.x, context.positions);
  parts.state = std::move(shifted.state);
  return parts;
}

GatedUnit::TreeParts GatedUnit::project_tree(const Variable& x, const Tensor& positions,
                                             std::span<const MixerNode> nodes,
                                             const MixerState& state) const {
  TreeMix shifted;
  if (params_.token_shift) shifted = shift_tree(x, nodes, state);
  return {maps(params_.token_shift ? shifted.y : x, positions), std::move(shifted)};
}

GatedUnit::Parts GatedUnit::maps(const Variable& read, const Tensor& positions) const {
  const int64_t B = read.size(0), T = read.size(1), s = params_.key_width;
  Parts parts;
  parts.gate = linear(read, gate_weight_, gate_bias_, Activation::silu);
  parts.values = reshape(linear(read, value_weight_, value_bias_, Activation::silu),
                         {B, T, 1, params_.value_width(options_)});
  const Variable shared = linear(read, shared_weight_, shared_bias_, Activation::silu);
  for (const Affine& affine : affine_) {
    // A diagonal matrix: s more products per channel, where the maps above take many times E.
    const Variable diagonal = block_diagonal(reshape(affine.gamma, {s, 1, 1}));
    Variable copy = reshape(linear(shared, diagonal, affine.beta), {B, T, 1, s});
    if (params_.rotary_width() > 0) copy = rotary(copy, positions, params_.rotary_width());
    parts.copies.push_back(copy);
  }
  return parts;
}

MixerResult GatedUnit::finish(const Parts& parts, const Variable& y, MixerState state) const {
  const Variable gated = multiply(parts.gate, reshape(y, parts.gate.shape()));
  state.insert(parts.state.begin(), parts.state.end());
  return {linear(gated, out_weight_, out_bias_), gated, std::move(state)};
}

GatedUnit::Bias GatedUnit::bias(int64_t past, int64_t T, double factor, Device device) const {
  if (params_.bias == "none") return {};
  const bool causal = options_.form == Form::causal;
  if (params_.bias == "toeplitz") {
    return {factor == 1 ? distance_bias_ : scale(distance_bias_, factor), reach_ - 1};
  }
  const int64_t before = past + T - 1, count = before + (causal ? 0 : T - 1) + 1;
  if (params_.bias == "rope") {
    // Products depend on distances alone: the query is at position `before`, keys at 0, 1, ...
    const int64_t s = params_.key_width;
    const Variable ones(Tensor::full({count, 1}, 1, distance_key_.dtype(), device));
    const Variable keys = rotary(reshape(linear(ones, distance_key_), {1, count, 1, s}),
                                 counted_positions(1, count, 0, device), s);
    const Variable query =
        rotary(reshape(distance_query_, {1, 1, 1, s}), counted_positions(1, 1, before, device), s);
    const Variable table = linear(reshape(keys, {count, s}), reshape(query, {1, s}));
    return {scale(reshape(table, {1, count}), factor), before};
  }
  const Tensor ids = distance_ids(-before, count, causal, device);
  const double root = std::sqrt(static_cast<double>(params_.key_width));
  return {reshape(embedding(ids, distance_bias_, factor * root), {1, count}), before};
}

double GatedUnit::divisor(int64_t T) const {
  const int64_t N = params_.length == "padded" ? T : options_.max_length;
  return static_cast<double>(std::max<int64_t>(N, 1));
}

MixerCost GatedUnit::cost(const MixerShape& shape) const {
  const auto tokens = static_cast<double>(shape.batch * shape.queries);
  const auto width = static_cast<double>(options_.width),
             s = static_cast<double>(params_.key_width);
  const auto values = static_cast<double>(params_.value_width(options_));
  const auto copies = static_cast<double>(affine_.size());
  const auto element = static_cast<double>(size_of(shape.dtype));
  MixerCost cost;
  cost.projections = tokens * (width * (3 * values + s) + copies * s * s);
  double parameters = width * (3 * values + s) + 2 * copies * s;
  if (options_.bias) parameters += 2 * values + s + width;
  if (distance_bias_.defined()) {
    parameters += static_cast<double>(distance_bias_.shape().elements());
  }
  if (distance_query_.defined()) {
    const int64_t distances = options_.form == Form::causal ? shape.queries : 2 * shape.queries - 1;
    cost.projections += 2 * s * static_cast<double>(distances);
    parameters += 2 * s;
  }
  cost.bytes = element * (2 * tokens * width + parameters);
  if (params_.token_shift && options_.form == Form::causal) {
    cost.bytes += static_cast<double>(shape.batch) * (width * element + sizeof(int64_t));
  }
  return cost;
}

}  // namespace linnet
