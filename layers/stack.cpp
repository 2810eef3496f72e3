#include "layers/stack.h"

#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "core/interrupt.h"
#include "layers/first_non_finite.h"
#include "layers/forward_record.h"

namespace linnet {
namespace {

// Appends the variables to `list` and returns their names.
std::vector<std::string> append(const MixerState& named, std::vector<Variable>& list) {
  std::vector<std::string> names;
  for (const auto& [name, variable] : named) {
    names.push_back(name);
    list.push_back(variable);
  }
  return names;
}

// The inverse, for variables that begin at `first`.
MixerState take(const std::vector<std::string>& names, const std::vector<Variable>& list,
                size_t first) {
  MixerState named;
  for (size_t i = 0; i < names.size(); ++i) named[names[i]] = list[first + i];
  return named;
}

}  // namespace

Stack::Stack(const ModelConfig& config, const StackForm& form, ParameterSet& parameters,
             const ParameterScope& scope, const MixerFactory& factory)
    : reads_source_(form.reads_source),
      layer_dropout_(config.layer_dropout),
      output_dropout_(form.drops_output ? config.dropout : 0),
      site_(scope.child("layer_dropout").prefix()),
      norm_site_(scope.child("final_norm").prefix()),
      output_site_(scope.child("output").prefix()) {
  MixerOptions options;
  options.width = config.width;
  options.heads = config.heads;
  options.kv_heads = config.kv_heads;
  options.max_length = form.length;
  options.dropout = config.attention_dropout;
  options.bias = config.bias;
  options.init = config.init;
  for (int64_t layer = 0; layer < form.layers; ++layer) {
    const ParameterScope own = scope.child("layers").child(std::to_string(layer));
    options.layer = layer;
    options.form = form.form;
    options.rotary_width = config.positions == "rotary" ? config.width / config.heads : 0;
    const auto first = static_cast<int64_t>(parameters.requested().size());
    auto mixer = factory(options, {own.child("attention"), scope.child("tied_attention")});
    std::unique_ptr<TokenMixer> cross;
    if (form.reads_source) {
      options.form = Form::cross;
      options.rotary_width = 0;
      cross = factory(options, {own.child("cross_attention"), scope.child("tied_cross_attention")});
    }
    blocks_.push_back(std::make_unique<Block>(config, own, std::move(mixer), std::move(cross)));
    const std::vector<Variable>& requested = parameters.requested();
    block_parameters_.emplace_back(requested.begin() + first, requested.end());
  }
  if (config.final_norm && config.norm_position == "pre") {
    final_norm_.emplace(config, scope.child("final_norm"));
  }
}

BlockResult Stack::run(size_t layer, ResidualSum x, const Variable& source,
                       const MixerContext& context, const MixerState& state,
                       const MixerState& cross, bool recompute_it) const {
  const Block& block = *blocks_[layer];
  if (!recompute_it || !grad_enabled()) return block(std::move(x), source, context, state, cross);
  // A recomputed block is a function of x, its source, its state and the streams; its own state
  // keeps no history, and its encoded source is not kept.
  std::vector<Variable> inputs{x.value()};
  if (source.defined()) inputs.push_back(source);
  const size_t first = inputs.size();
  const std::vector<std::string> state_names = append(state, inputs);
  const std::vector<std::string> stream_names = append(context.streams, inputs);
  // Names of the outputs, which the body fills in.
  struct Names {
    std::vector<std::string> states, streams;
  };
  auto names = std::make_shared<Names>();
  const std::vector<Variable> outputs = recompute(
      [&block, context, first, state_names, stream_names, names](const std::vector<Variable>& in) {
        MixerContext inside = context;
        inside.streams = take(stream_names, in, first + state_names.size());
        const BlockResult after = block({in[0]}, first == 2 ? in[1] : Variable(), inside,
                                        take(state_names, in, first), {});
        std::vector<Variable> result{after.x.value()};
        names->states = append(after.state, result);
        names->streams = append(after.streams, result);
        return result;
      },
      inputs, block_parameters_[layer]);
  return {{outputs[0]},
          take(names->states, outputs, 1),
          take(names->streams, outputs, 1 + names->states.size())};
}

Variable Stack::operator()(Variable embedded, const Variable& source, MixerContext context,
                           StackState* state, bool recompute) const {
  if (state != nullptr) {
    state->layers.resize(blocks_.size());
    if (reads_source_) state->cross.resize(blocks_.size());
  }
  ResidualSum x{std::move(embedded)};
  const MixerState nothing;
  const RandomKey skip_key = context.random.at(site_);
  if constexpr (kCuda) {
    if (context.training && layer_dropout_ > 0) {
      cuda::refuse_capture("model.layer_dropout, by which the host redraws layers each step,");
    }
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    interruption_point();
    if (context.training && skip_key.uniform(layer) < layer_dropout_) continue;
    BlockResult after =
        run(layer, std::move(x), source, context, state != nullptr ? state->layers[layer] : nothing,
            state != nullptr && reads_source_ ? state->cross[layer] : nothing, recompute);
    x = std::move(after.x);
    if (ForwardRecord* record = ForwardRecord::current()) {
      x = {x.value()};
      record->add_layer(static_cast<int64_t>(layer), x.residual.value());
    }
    if (state != nullptr) state->layers[layer] = std::move(after.state);
    if (state != nullptr && reads_source_) state->cross[layer] = std::move(after.cross);
    for (auto& [name, stream] : after.streams) context.streams[name] = std::move(stream);
  }
  return finish(x, context);
}

Variable Stack::rows(Variable embedded, const MixerContext& context,
                     std::span<MixerContext> contexts, std::span<StackState* const> states) const {
  const NoGrad off;
  ResidualSum x{std::move(embedded)};
  std::vector<MixerRow> rows(states.size());
  std::vector<const MixerState*> sources(reads_source_ ? rows.size() : 0);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].context = contexts[i];
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    interruption_point();
    for (size_t i = 0; i < rows.size(); ++i) rows[i].state = std::move(states[i]->layers[layer]);
    for (size_t i = 0; i < sources.size(); ++i) sources[i] = &states[i]->cross[layer];
    x = blocks_[layer]->rows(std::move(x), context, rows, sources);
    for (size_t i = 0; i < rows.size(); ++i) states[i]->layers[layer] = std::move(rows[i].state);
  }
  return finish(x, context);
}

Stack::Tree Stack::tree(Variable embedded, const MixerContext& context,
                        std::vector<MixerNode> nodes, const std::vector<MixerState>& states,
                        TreeStates how) const {
  const NoGrad off;
  ResidualSum x{std::move(embedded)};
  Tree result;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    interruption_point();
    Block::Tree after = blocks_[layer]->tree(std::move(x), context, nodes, states[layer], how);
    x = std::move(after.x);
    result.state_after.push_back(std::move(after.state_after));
  }
  result.x = finish(x, context);
  return result;
}

Variable Stack::finish(const ResidualSum& x, const MixerContext& context) const {
  if (!final_norm_) return x.value();
  const Variable normed = final_norm_->of_sum(x).second;
  FirstNonFinite::look(norm_site_, "", normed.value());
  return dropout(normed, dropout_spec(output_dropout_, output_site_, context));
}

}  // namespace linnet
