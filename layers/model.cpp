#include "layers/model.h"

#include <algorithm>
#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"
#include "core/cuda/runtime.h"
#include "core/interrupt.h"
#include "layers/first_non_finite.h"
#include "layers/models.h"

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

ModelState ModelState::detach() const {
  ModelState result;
  result.length = length;
  for (const MixerState& layer : layers) {
    MixerState& copy = result.layers.emplace_back();
    for (const auto& [name, variable] : layer) copy[name] = variable.detach();
  }
  return result;
}

size_t ModelState::bytes() const {
  size_t total = 0;
  for (const MixerState& layer : layers) {
    for (const auto& [name, variable] : layer) total += variable.value().bytes();
  }
  return total;
}

Transformer::Transformer(const ModelConfig& config, const ModelSizes& sizes,
                         const MixerFactory& factory)
    : config_(config), sizes_(sizes) {
  const int64_t vocabulary = sizes.vocabulary, length = sizes.length;
  require(vocabulary > 0 && length > 0, "model: vocabulary ", vocabulary, " and length ", length,
          " must be positive");
  const ParameterScope root(parameters_);
  if (config.embedding == "adaptive") {
    const bool tied = config.has_adaptive_head() && config.tie_embeddings && sizes.classes == 0;
    adaptive_tables_ = std::make_shared<AdaptiveTables>(
        config, bands_of(config, vocabulary), root.child("embedding"),
        AdaptiveTables::Use{.input = true, .output = tied});
  } else {
    const double deviation =
        config.scale_embedding ? 1 / std::sqrt(static_cast<double>(config.width)) : 0.02;
    token_table_ =
        root.parameter("embedding.weight", {vocabulary, config.width}, init_normal(deviation));
  }
  if (config.positions == "learned") {
    position_rows_ =
        config.max_positions > 0 ? config.max_positions - config.position_offset : length;
    position_table_ =
        root.parameter("positions.weight", {config.position_offset + position_rows_, config.width},
                       init_normal(0.02));
  }
  if (config.token_types > 0) {
    token_type_table_ =
        root.parameter("token_types.weight", {config.token_types, config.width}, init_normal(0.02));
  }
  if (config.embedding_norm) embedding_norm_ = Norm(config, root.child("embedding_norm"));
  const Form form = form_of_kind(config.kind);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const ParameterScope scope = root.child("layers").child(std::to_string(layer));
    MixerOptions options;
    options.width = config.width;
    options.heads = config.heads;
    options.kv_heads = config.kv_heads;
    options.form = form;
    options.max_length = length;
    options.layer = layer;
    options.dropout = config.attention_dropout;
    options.rotary_width = config.positions == "rotary" ? config.width / config.heads : 0;
    options.bias = config.bias;
    options.init = config.init;
    const auto first = static_cast<int64_t>(parameters_.requested().size());
    auto mixer = factory(options, {scope.child("attention"), root.child("tied_attention")});
    blocks_.push_back(std::make_unique<Block>(config, scope, std::move(mixer)));
    const std::vector<Variable>& requested = parameters_.requested();
    block_parameters_.emplace_back(requested.begin() + first, requested.end());
  }
  if (config.final_norm && config.norm_position == "pre") {
    final_norm_ = Norm(config, root.child("final_norm"));
  }
  head_ = make_head({config_, sizes_, root, token_table_, adaptive_tables_});
}

int64_t Transformer::length_limit() const {
  int64_t limit = position_rows_;
  for (const auto& block : blocks_) {
    const int64_t own = block->mixer().length_limit();
    if (own > 0 && (limit == 0 || own < limit)) limit = own;
  }
  return limit;
}

std::string Transformer::length_limit_reason() const {
  const int64_t limit = length_limit();
  if (position_rows_ > 0 && position_rows_ == limit) {
    return concat("its table of learned positions has ", config_.position_offset + limit,
                  " rows (for more, train with model.max_positions, or with sinusoidal or rotary "
                  "positions)");
  }
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [limit](const auto& each) {
    return each->mixer().length_limit() == limit;
  });
  return concat("the attention of layer ", block - blocks_.begin(), " was made for ", limit,
                " tokens (for more, train with a longer data.context, or see the parameters of "
                "model.attention)");
}

int64_t Transformer::layers_without_feed_forward() const {
  return std::count_if(blocks_.begin(), blocks_.end(),
                       [](const auto& block) { return block->mixer().replaces_feed_forward(); });
}

void Transformer::after_update() const {
  for (const auto& block : blocks_) block->mixer().after_update(parameters_);
}

MixerContext Transformer::context_of(const ModelInput& input, int64_t offset) const {
  const int64_t rows = input.tokens.size(0);
  const int64_t time = input.tokens.size(1);
  MixerContext context;
  context.positions = input.positions;
  if (!context.positions.defined()) {
    context.positions = counted_positions(rows, time, offset, input.tokens.device());
  }
  context.key_mask = input.key_mask;
  context.segments = input.segments;
  context.place = input.place;
  context.place.time_offset += offset;
  context.random = input.random;
  context.training = input.training;
  return context;
}

BlockResult Transformer::run_block(size_t layer, const Variable& x, const MixerContext& context,
                                   const MixerState& state, bool recompute_it) const {
  const Block& block = *blocks_[layer];
  if (!recompute_it || !grad_enabled()) return block(x, context, state);
  // A recomputed block is a function of x, its state and the streams; its own state keeps no
  // history.
  std::vector<Variable> inputs{x};
  const std::vector<std::string> state_names = append(state, inputs);
  const std::vector<std::string> stream_names = append(context.streams, inputs);
  // Names of the outputs, which the body fills in.
  struct Names {
    std::vector<std::string> states, streams;
  };
  auto names = std::make_shared<Names>();
  const std::vector<Variable> outputs = recompute(
      [&block, context, state_names, stream_names, names](const std::vector<Variable>& in) {
        MixerContext inside = context;
        inside.streams = take(stream_names, in, 1 + state_names.size());
        const BlockResult after = block(in[0], inside, take(state_names, in, 1));
        std::vector<Variable> result{after.x};
        names->states = append(after.state, result);
        names->streams = append(after.streams, result);
        return result;
      },
      inputs, block_parameters_[layer]);
  return {outputs[0], take(names->states, outputs, 1),
          take(names->streams, outputs, 1 + names->states.size())};
}

Variable Transformer::embed(const ModelInput& input, const MixerContext& context) const {
  const double factor =
      config_.scale_embedding ? std::sqrt(static_cast<double>(config_.width)) : 1.0;
  Variable x = adaptive_tables_ ? adaptive_tables_->embed(input.tokens, input.token_bands, factor)
                                : embedding(input.tokens, token_table_, factor);
  if (config_.positions == "sinusoidal") x = add_sinusoidal(x, context.positions);
  if (position_table_.defined()) {
    const int64_t offset = config_.position_offset;
    const Variable rows =
        offset == 0 ? position_table_ : slice(position_table_, 0, offset, offset + position_rows_);
    x = add(x, embedding(context.positions, rows));
  }
  require_usage(token_type_table_.defined() || !input.token_types.defined(),
                Cause{ErrorCode::conflict, "model.token_types"},
                "the data mark which text of a pair each token is of, and the model has no table "
                "for that: set model.token_types=2");
  if (token_type_table_.defined()) {
    const Tensor& given = input.token_types;
    x = add(x,
            embedding(
                given.defined() ? given : Tensor::zeros(input.tokens.shape(), DType::i32, device()),
                token_type_table_));
  }
  if (config_.embedding_norm) x = embedding_norm_(x);
  x = dropout(x, dropout_spec(config_.dropout, "embedding", context));
  FirstNonFinite::look("embedding", "", x.value());
  return x;
}

Variable Transformer::encode(const ModelInput& input, ModelState* state) const {
  require(input.tokens.defined() && input.tokens.shape().rank() == 2,
          "model: expected tokens [B, T]");
  const int64_t offset = state != nullptr ? state->length : 0;
  const int64_t time = input.tokens.size(1);
  if (const int64_t limit = length_limit(); limit > 0 && offset + time > limit) {
    throw UsageError(concat("the model handles at most ", limit, " positions, but ", offset + time,
                            " are needed: ", length_limit_reason()));
  }
  MixerContext context = context_of(input, offset);
  Variable x = embed(input, context);
  if (state != nullptr && state->layers.empty()) state->layers.resize(blocks_.size());
  const RandomKey skip_key = context.random.at("layer_dropout");
  if constexpr (kCuda) {
    if (input.training && config_.layer_dropout > 0) {
      cuda::refuse_capture("model.layer_dropout, by which the host redraws layers each step,");
    }
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    interruption_point();
    if (input.training && skip_key.uniform(layer) < config_.layer_dropout) continue;
    BlockResult after = run_block(
        layer, x, context, state != nullptr ? state->layers[layer] : MixerState{}, input.recompute);
    x = after.x;
    if (state != nullptr) state->layers[layer] = std::move(after.state);
    for (auto& [name, stream] : after.streams) context.streams[name] = std::move(stream);
  }
  if (state != nullptr) state->length += time;
  if (!config_.final_norm || config_.norm_position != "pre") return x;
  Variable normed = final_norm_(x);
  FirstNonFinite::look("final_norm", "", normed.value());
  return normed;
}

const TokenHead& Transformer::token_head() const {
  const auto* head = std::get_if<std::unique_ptr<const TokenHead>>(&head_);
  require_usage(head != nullptr, Cause{ErrorCode::conflict, "model.head"},
                "this needs a model that predicts tokens, and the recipe's predicts classes of "
                "examples");
  return **head;
}

const ExampleHead& Transformer::example_head() const {
  const auto* head = std::get_if<std::unique_ptr<const ExampleHead>>(&head_);
  require_usage(head != nullptr, Cause{ErrorCode::conflict, "model.head"},
                "this needs a model that predicts classes of examples, and the recipe's predicts "
                "tokens");
  return **head;
}

Variable Transformer::example_logits(const ModelInput& input) const {
  const ExampleHead& head = example_head();
  require_usage(input.rows_per_example == sizes_.rows_per_example,
                Cause{ErrorCode::conflict, "data.kind"}, "each example of the data has ",
                input.rows_per_example == 1 ? "one row" : "two rows",
                ", and the model was made for examples of ",
                sizes_.rows_per_example == 1 ? "one: name data of single texts in data.kind"
                                             : "two: name data of pairs in data.kind");
  Variable logits = head.logits(encode(input, nullptr), input);
  FirstNonFinite::look("head", "", logits.value());
  return logits;
}

}  // namespace linnet
