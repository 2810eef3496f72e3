#include "layers/token_mixer.h"

#include <cmath>
#include <numbers>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "layers/dead_rows.h"
#include "layers/forward_record.h"
#include "layers/projection_bias.h"

namespace linnet {

std::string_view name_of(Form form) {
  switch (form) {
    case Form::noncausal:
      return "noncausal";
    case Form::causal:
      return "causal";
    case Form::cross:
      return "cross";
  }
  throw Error("name_of: not a form");
}

Form form_from_name(std::string_view name) {
  for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
    if (name_of(form) == name) return form;
  }
  throw UsageError({ErrorCode::unknown_name, "form"},
                   concat("unknown form '", name, "'; expected noncausal, causal or cross"));
}

namespace {

// A given tensor, or a made one.
Tensor take(const std::map<std::string, Tensor>& given, const char* group, const std::string& name,
            const Shape& shape, const std::function<Tensor()>& make) {
  const auto found = given.find(name);
  const Tensor result = found == given.end() ? make() : found->second;
  require_usage(result.shape() == shape, group, "/", name, ": expected ", shape, ", got ",
                result.shape());
  return result;
}

}  // namespace

Tensor drawn(const MixerContext& context, const std::string& name, const Shape& shape,
             const std::function<Tensor()>& make) {
  if constexpr (kCuda) cuda::refuse_capture("a draw of the attention on the host");
  if (context.record == nullptr) return make();
  const Tensor result =
      take(context.record->given_draws, "draws", name, shape, make).to(DType::f64);
  context.record->draws[name] = result;
  return result;
}

Tensor chosen(const MixerContext& context, const std::string& name, const Shape& shape,
              Device device, const std::function<Tensor()>& make) {
  if (context.record == nullptr) return make();
  const Tensor result =
      take(context.record->given_choices, "choices", name, shape, make).to(DType::i32).to(device);
  context.record->choices[name] = result;
  return result;
}

namespace {

// Row i of each tensor.
MixInput row_of(const MixInput& all, size_t i) {
  const auto row = [at = static_cast<int64_t>(i)](const Variable& of_all) {
    return of_all.defined() ? slice(of_all, 0, at, at + 1) : Variable();
  };
  return {row(all.q), row(all.k), row(all.v), row(all.x), {}};
}

}  // namespace

MixerResult nothing_mixed(const Variable& x, const MixerState& state) {
  const Variable y = reshape(x, x.shape());
  return {y, y, state};
}

Variable TokenMixer::forward_rows(const Variable& x, const Tensor& positions,
                                  std::span<MixerRow> rows) const {
  require(x.size(0) == static_cast<int64_t>(rows.size()) && positions.size(0) == x.size(0),
          "forward_rows: ", rows.size(), " rows for x ", x.shape());
  std::vector<Variable> ys;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    MixerResult mixed =
        forward(rows.size() == 1 ? x : slice(x, 0, at, at + 1), rows[i].context, rows[i].state);
    rows[i].state = std::move(mixed.state);
    for (auto& [name, stream] : mixed.streams) rows[i].context.streams[name] = std::move(stream);
    ys.push_back(mixed.y);
  }
  return rows.size() == 1 ? ys[0] : concatenate(ys, 0);
}

Variable TokenMixer::forward_cross_rows(const Variable& x, std::span<MixerRow> rows,
                                        std::span<const MixerState* const> sources) const {
  require(x.size(0) == static_cast<int64_t>(rows.size()) && sources.size() == rows.size(),
          "forward_cross_rows: ", rows.size(), " rows and ", sources.size(), " sources for x ",
          x.shape());
  std::vector<Variable> ys;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    MixerResult read = forward_cross(rows.size() == 1 ? x : slice(x, 0, at, at + 1), {},
                                     rows[i].context, *sources[i]);
    for (auto& [name, stream] : read.streams) rows[i].context.streams[name] = std::move(stream);
    ys.push_back(read.y);
  }
  return rows.size() == 1 ? ys[0] : concatenate(ys, 0);
}

bool MixerTraits::has(Form form) const {
  return form == Form::noncausal ? noncausal : form == Form::causal ? causal : cross;
}

double MixerTraits::growth_exponent() const {
  if (growth.starts_with("T^") && growth.size() > 2 && growth[2] > '0' && growth[2] <= '9') {
    return growth[2] - '0';
  }
  require(growth == "T" || growth.starts_with("T "), "growth '", growth,
          "' must begin with a power of T: \"T\", \"T w\", \"T^2\"");
  return 1;
}

Initializer projection_init(std::string_view style, double gain, int64_t fan_in, int64_t fan_out) {
  if (style == "xavier") return init_xavier(gain, fan_in, fan_out);
  if (style == "uniform") return init_uniform(1.0 / std::sqrt(static_cast<double>(fan_in)));
  if (style == "normal") return init_normal(0.02);
  throw UsageError({ErrorCode::unknown_name, "init"},
                   concat("unknown init '", style, "'; expected xavier, uniform or normal"));
}

AttentionMixer::AttentionMixer(const MixerOptions& options, const MixerScope& scope,
                               const Projections& projections)
    : options_(options), projections_(projections), site_(scope.own.prefix()) {
  const int64_t width = options.width;
  require_usage(width > 0 && options.heads > 0 && width % options.heads == 0, "attention: width ",
                width, " must be a positive multiple of heads ", options.heads);
  require_usage(options.heads % options.key_heads() == 0, "attention: heads ", options.heads,
                " must be a multiple of the heads of keys and values, ", options.key_heads());
  const auto weight = [&](const char* name, double gain, int64_t out) {
    return scope.own.parameter(std::string(name) + ".weight", {out, width},
                               projection_init(options.init, gain, width, out));
  };
  const auto bias = [&](const char* name, int64_t out) {
    if (!options.bias) return Variable();
    return scope.own.parameter(std::string(name) + ".bias", {out},
                               projection_bias_init(options.init, width));
  };
  // Three products: with a prototype of one for all of them, updates of recipes/bench/cpu_lm.yaml
  // took 0.98 (linear), 1.06 (lavo) and 1.06 (softmax) times as long (bench train, smallest of
  // three alternating rounds, one thread of a busy Intel Xeon, 2026-11-27, commit ab594b4f).
  const int64_t key_width = options.key_width();
  if (projections.q) q_weight_ = weight("q", 1 / std::numbers::sqrt2, width);
  if (projections.k) k_weight_ = weight("k", 1 / std::numbers::sqrt2, key_width);
  if (projections.v) v_weight_ = weight("v", 1 / std::numbers::sqrt2, key_width);
  if (projections.q && projections.bias) q_bias_ = bias("q", width);
  if (projections.k && projections.bias) k_bias_ = bias("k", key_width);
  if (projections.v && projections.bias) v_bias_ = bias("v", key_width);
  out_weight_ = weight("out", 1, width);
  out_bias_ = bias("out", width);
}

Variable AttentionMixer::project(const Variable& x, const Variable& weight,
                                 const Variable& bias) const {
  if (!weight.defined()) return {};
  return reshape(
      linear(x, weight, bias),
      {x.size(0), x.size(1), weight.size(0) / options_.head_width(), options_.head_width()});
}

AttentionMixer::MixResult AttentionMixer::attend(const MixInput& input, const MixerContext& context,
                                                 const MixerState& state) const {
  MixResult mixed = mix(input, context, state);
  if (DeadRowCount* count = DeadRowCount::current()) {
    count->add_outputs(options_.layer, mixed.y.value(), context.key_mask);
  }
  if (branches_ != nullptr) {
    MixResult more = branches_->mix(input, context, state);
    mixed.y = add(mixed.y, more.y);
    mixed.state.merge(more.state);
  }
  if (ForwardRecord* record = ForwardRecord::current()) {
    record->add_attention(*this, input, context, state, mixed.y.value());
  }
  return mixed;
}

MixerResult AttentionMixer::finish(const MixInput& input, const MixerContext& context,
                                   const MixerState& state) const {
  MixResult mixed = attend(input, context, state);
  const Variable merged =
      reshape(mixed.y, {mixed.y.size(0), mixed.y.size(1), mixed.y.size(2) * mixed.y.size(3)});
  return {linear(merged, out_weight_, out_bias_), merged, std::move(mixed.state)};
}

MixerCost AttentionMixer::cost(const MixerShape& shape) const {
  const bool cross = options_.form == Form::cross;
  MixerShape filled = shape;
  if (!cross) filled.keys = shape.queries;
  const auto queries = static_cast<double>(shape.batch * shape.queries);
  const auto keys = static_cast<double>(shape.batch * filled.keys);
  const auto width = static_cast<double>(options_.width);
  const double vectors = 2 * queries + (cross ? keys : 0);
  const auto counted = [](bool present) { return present ? 1.0 : 0.0; };
  const double of_keys = counted(projections_.k) + counted(projections_.v);
  const double key_width = static_cast<double>(options_.key_width()) * of_keys;
  const double inputs = counted(projections_.q) * width + key_width;
  const double biases = options_.bias ? width + (projections_.bias ? inputs : 0) : 0;
  const double parameters = (width + inputs) * width + biases;
  MixerCost cost = mix_cost(filled);
  if (branches_ != nullptr) {
    const MixerCost more = branches_->cost(filled);
    cost.projections += more.projections;
    cost.mixing += more.mixing;
    cost.bytes += more.bytes;
  }
  cost.projections += ((1 + counted(projections_.q)) * queries * width + key_width * keys) * width;
  cost.bytes += static_cast<double>(size_of(shape.dtype)) * (width * vectors + parameters);
  return cost;
}

MixInput AttentionMixer::projected(const Variable& x, const Tensor& positions,
                                   const Tensor& key_positions) const {
  MixInput input{project(x, q_weight_, q_bias_),
                 project(x, k_weight_, k_bias_),
                 project(x, v_weight_, v_bias_),
                 x,
                 {}};
  if (options_.rotary_width > 0) {
    const auto rotate = [this](Variable& x, const Tensor& positions) {
      if (x.defined()) x = rotary(x, positions, options_.rotary_width);
    };
    rotate(input.q, positions);
    rotate(input.k, key_positions.defined() ? key_positions : positions);
  }
  return input;
}

MixerResult AttentionMixer::forward(const Variable& x, const MixerContext& context,
                                    const MixerState& state) const {
  require(options_.form != Form::cross, "forward: this attention was built for the cross form");
  require(x.shape().rank() == 3 && x.size(2) == options_.width, "attention: expected x [B, T, ",
          options_.width, "], got ", x.shape());
  if (x.size(1) == 0) return nothing_mixed(x, state);
  return finish(projected(x, context.positions, context.key_positions), context, state);
}

Variable AttentionMixer::forward_rows(const Variable& x, const Tensor& positions,
                                      std::span<MixerRow> rows) const {
  if (rows.size() == 1 || x.size(1) == 0) return TokenMixer::forward_rows(x, positions, rows);
  const MixInput all = projected(x, positions, {});
  std::vector<Variable> ys;
  for (size_t i = 0; i < rows.size(); ++i) {
    MixResult mixed = attend(row_of(all, i), rows[i].context, rows[i].state);
    rows[i].state = std::move(mixed.state);
    ys.push_back(mixed.y);
  }
  return output_of_rows(ys);
}

Variable AttentionMixer::output_of_rows(const std::vector<Variable>& rows) const {
  const Variable y = concatenate(rows, 0);
  return linear(reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)}), out_weight_, out_bias_);
}

MixerResult AttentionMixer::forward_cross(const Variable& x, const Variable& source,
                                          const MixerContext& context,
                                          const MixerState& state) const {
  require(options_.form == Form::cross, "forward_cross: this attention was not built for it");
  MixInput input{project(x, q_weight_, q_bias_), {}, {}, x, source};
  if (state.empty()) {
    input.k = project(source, k_weight_, k_bias_);
    input.v = project(source, v_weight_, v_bias_);
  }
  return finish(input, context, state);
}

Variable AttentionMixer::forward_cross_rows(const Variable& x, std::span<MixerRow> rows,
                                            std::span<const MixerState* const> sources) const {
  if (rows.size() == 1) return TokenMixer::forward_cross_rows(x, rows, sources);
  const MixInput all{project(x, q_weight_, q_bias_), {}, {}, x, {}};
  std::vector<Variable> ys;
  for (size_t i = 0; i < rows.size(); ++i) {
    ys.push_back(attend(row_of(all, i), rows[i].context, *sources[i]).y);
  }
  return output_of_rows(ys);
}

}  // namespace linnet
