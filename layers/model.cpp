#include "layers/model.h"

#include <algorithm>
#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/layout.h"
#include "layers/first_non_finite.h"
#include "layers/forward_record.h"
#include "layers/models.h"

namespace linnet {

ModelState ModelState::detach() const {
  ModelState result = *this;
  for (std::vector<MixerState>* all : {&result.layers, &result.cross}) {
    for (MixerState& layer : *all) {
      for (auto& [name, variable] : layer) variable = variable.detach();
    }
  }
  return result;
}

ModelState TreeReading::after(std::span<const int64_t> path) const {
  ModelState state;
  for (const auto& layer : layers) state.layers.push_back(layer(path));
  state.length = length + std::ssize(path);
  return state;
}

size_t ModelState::bytes() const {
  size_t total = 0;
  for (const std::vector<MixerState>* all : {&layers, &cross}) {
    for (const MixerState& layer : *all) {
      for (const auto& [name, variable] : layer) total += variable.value().bytes();
    }
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
  StackForm form{config.layers, form_of_kind(config.kind), false, false, length};
  if (kind_has_encoder(config.kind)) {
    require_usage(config.decoder_start < vocabulary,
                  Cause{ErrorCode::out_of_range, "model.decoder_start"}, "model.decoder_start ",
                  config.decoder_start, " is no id of the vocabulary, whose last is ",
                  vocabulary - 1);
    form.drops_output = true;
    form.form = Form::noncausal;
    encoder_.emplace(config, form, parameters_, root.child("encoder"), factory);
    form.layers = config.layers_of_decoder();
    form.form = form_of_kind(config.kind);
    form.reads_source = true;
    stack_.emplace(config, form, parameters_, root.child("decoder"), factory);
  } else {
    stack_.emplace(config, form, parameters_, root, factory);
  }
  head_ = make_head({config_, sizes_, root, token_table_, adaptive_tables_});
  if (config.medusa.heads > 0) {
    medusa_.emplace(config.medusa, config.width, vocabulary, root.child("medusa"));
  }
}

std::vector<std::pair<int64_t, const TokenMixer*>> Transformer::mixers() const {
  std::vector<std::pair<int64_t, const TokenMixer*>> all;
  for (const std::optional<Stack>* stack : {&encoder_, &stack_}) {
    if (!stack->has_value()) continue;
    int64_t layer = 0;
    for (const auto& block : (*stack)->blocks()) {
      for (const TokenMixer* mixer : block->mixers()) all.emplace_back(layer, mixer);
      ++layer;
    }
  }
  return all;
}

int64_t Transformer::length_limit() const {
  int64_t limit = position_rows_;
  for (const auto& [layer, mixer] : mixers()) {
    const int64_t own = mixer->length_limit();
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
  const auto all = mixers();
  const auto found = std::find_if(all.begin(), all.end(), [limit](const auto& each) {
    return each.second->length_limit() == limit;
  });
  return concat("the attention of layer ", found->first, " was made for ", limit,
                " tokens (for more, train with a longer data.context, or see the parameters of "
                "model.attention)");
}

int64_t Transformer::layers_without_feed_forward() const {
  const auto all = mixers();
  return std::count_if(all.begin(), all.end(),
                       [](const auto& each) { return each.second->replaces_feed_forward(); });
}

void Transformer::after_update() const {
  for (const auto& [layer, mixer] : mixers()) mixer->after_update(parameters_);
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

Variable Transformer::embed(const ModelInput& input, const MixerContext& context,
                            const std::string& site) const {
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
  x = dropout(x, dropout_spec(config_.dropout, site, context));
  FirstNonFinite::look(site, "", x.value());
  return x;
}

Variable Transformer::encode(const ModelInput& input, ModelState* state) const {
  require(input.tokens.defined() && input.tokens.shape().rank() == 2,
          "model: expected tokens [B, T]");
  if (encoder_) return decode(input, state);
  const int64_t offset = state != nullptr ? state->length : 0;
  const int64_t time = input.tokens.size(1);
  require_positions(offset + time);
  const MixerContext context = context_of(input, offset);
  const Variable x = embed(input, context, "embedding");
  if (ForwardRecord* record = ForwardRecord::current()) record->add("embedded", x.value());
  const Variable y = (*stack_)(x, {}, context, state, input.recompute);
  if (state != nullptr) state->length += time;
  return y;
}

Variable Transformer::encode_rows(const Tensor& tokens, std::span<ModelState* const> states) const {
  const int64_t time = tokens.shape().rank() == 2 ? tokens.size(1) : 0;
  std::vector<int32_t> positions;
  for (const ModelState* state : states) {
    for (int64_t t = 0; t < time; ++t) positions.push_back(static_cast<int32_t>(state->length + t));
  }
  return encode_rows(tokens, Tensor::from(positions, {std::ssize(states), time}, tokens.device()),
                     states);
}

Variable Transformer::encode_rows(const Tensor& tokens, const Tensor& positions,
                                  std::span<ModelState* const> states) const {
  const auto rows = static_cast<int64_t>(states.size());
  require(tokens.shape().rank() == 2 && tokens.size(0) == rows && rows > 0 &&
              positions.shape() == tokens.shape(),
          "model: expected ", rows, " rows of tokens and as many positions, got ", tokens.shape(),
          " and ", positions.shape());
  const int64_t time = tokens.size(1);
  std::vector<MixerContext> contexts;
  std::vector<StackState*> own;
  for (int64_t row = 0; row < rows; ++row) {
    ModelState& state = *states[static_cast<size_t>(row)];
    require_positions(state.length + time);
    require(!encoder_ || !state.cross.empty(), "model: row ", row, " has no encoded source");
    state.layers.resize(stack_->blocks().size());
    ModelInput one;
    one.tokens = tokens.rows(row, row + 1);
    one.positions = positions.rows(row, row + 1);
    contexts.push_back(context_of(one, state.length));
    contexts.back().source_mask = state.source_mask;
    own.push_back(&state);
    state.length += time;
  }
  ModelInput all;
  all.tokens = tokens;
  all.positions = positions;
  const MixerContext context = context_of(all, 0);
  return stack_->rows(embed(all, context, "embedding"), context, contexts, own);
}

TreeReading Transformer::encode_tree(const Tensor& tokens, std::span<const int64_t> parents,
                                     const ModelState& state, TreeStates states) const {
  const int64_t nodes = std::ssize(parents);
  require(tokens.shape().rank() == 2 && tokens.size(0) == nodes && tokens.size(1) == 1 && nodes > 0,
          "model: expected ", nodes, " rows of a token, got ", tokens.shape());
  require(!encoder_, "model: kind encoder_decoder reads no trees");
  std::vector<MixerNode> tree;
  std::vector<int32_t> positions;
  std::vector<MixerContext> contexts;  // by depth
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t parent = parents[static_cast<size_t>(i)];
    require(-1 <= parent && parent < i, "model: node ", i, " of a tree has the parent ", parent);
    positions.push_back(parent < 0 ? static_cast<int32_t>(state.length)
                                   : positions[static_cast<size_t>(parent)] + 1);
    const auto depth = static_cast<size_t>(positions.back() - state.length);
    if (depth == contexts.size()) {
      require_positions(positions.back() + 1);
      ModelInput one;
      one.tokens = tokens.rows(i, i + 1);
      contexts.push_back(context_of(one, positions.back()));
    }
    tree.push_back({contexts[depth], parent});
  }
  ModelInput all;
  all.tokens = tokens;
  all.positions = Tensor::from(positions, {nodes, 1}, tokens.device());
  const MixerContext context = context_of(all, 0);
  std::vector<MixerState> before = state.layers;
  before.resize(stack_->blocks().size());
  Stack::Tree read =
      stack_->tree(embed(all, context, "embedding"), context, std::move(tree), before, states);
  return {read.x.value().reshape({nodes, config_.width}), std::move(read.state_after),
          state.length};
}

void Transformer::require_positions(int64_t count) const {
  const int64_t limit = length_limit();
  if (limit == 0 || count <= limit) return;
  throw UsageError(concat("the model handles at most ", limit, " positions, but ", count,
                          " are needed: ", length_limit_reason()));
}

Variable Transformer::encode_source(const ModelInput& source) const {
  require_positions(source.tokens.size(1));
  const MixerContext context = context_of(source, 0);
  const Variable x = embed(source, context, "embedding");
  ForwardRecord* record = ForwardRecord::current();
  if (record != nullptr) {
    record->add("embedded", x.value());
    record->begin_stack("encoder");
  }
  Variable encoded = (*encoder_)(x, {}, context, nullptr, source.recompute);
  if (record != nullptr) {
    record->add("encoder.final", encoded.value());
    record->begin_stack("decoder");
  }
  return encoded;
}

Variable Transformer::decode(const ModelInput& input, ModelState* state) const {
  require(!input.segments.defined(), "model: kind encoder_decoder reads rows of one document each");
  const bool encoded = state != nullptr && !state->cross.empty();
  const bool one_row = !encoded && !input.source.defined();
  require(!encoded || !input.source.defined(), "model: the state has its source already");
  require(state == nullptr || !one_row, "model: the decode state begins with a source");
  require(state == nullptr || !input.recompute, "model: recomputation keeps no decode state");
  ModelInput source = input, own = input;
  if (one_row) {
    own.tokens = shifted_right(input.tokens, static_cast<int32_t>(config_.decoder_start));
  } else {
    source.tokens = input.source;
    source.key_mask = input.source_mask;
    source.positions = source.token_types = {};
    source.token_bands = {};
  }
  own.token_types = {};
  own.token_bands = {};  // of the tokens as they were
  const Variable read = encoded ? Variable() : encode_source(source);
  const int64_t offset = state != nullptr ? state->length : 0, time = own.tokens.size(1);
  require_positions(offset + time);
  MixerContext context = context_of(own, offset);
  context.source_mask = encoded ? state->source_mask : source.key_mask;
  const Variable y =
      (*stack_)(embed(own, context, "decoder.embedding"), read, context, state, input.recompute);
  if (state != nullptr) {
    state->length += time;
    state->source_mask = context.source_mask;
  }
  return y;
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
