// Whole models: a trunk of blocks and a head.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layers/adaptive_tables.h"
#include "layers/heads.h"
#include "layers/medusa.h"
#include "layers/model_input.h"
#include "layers/stack.h"

namespace linnet {

// Decode state of a decoder: every layer's state and the number of tokens seen; behind an encoder
// the encoded source, too.
struct ModelState : StackState {
  int64_t length = 0;
  Tensor source_mask;  // u8 [B,S]; undefined: all of the source is valid
  // The same values without history.
  ModelState detach() const;
  size_t bytes() const;
};

// What a decoder made of the tokens of a tree after a text.
struct TreeReading {
  Tensor hidden;  // [N,E], of each node
  std::vector<std::function<MixerState(std::span<const int64_t> path)>> layers;
  int64_t length = 0;  // of the text
  // The state after the text and a path, nodes from the root downwards, at least one.
  ModelState after(std::span<const int64_t> path) const;
};

// A trunk (embeddings, positions, one stack of blocks, or an encoder and the decoder that reads it)
// and a head. Owns its parameters.
class Transformer {
 public:
  // sizes.length is the size of a learned position table and the length that length-dependent
  // mechanisms are made for. Call parameters().materialize() before the first use. Throws
  // UsageError for a head that does not suit the sizes.
  Transformer(const ModelConfig& config, const ModelSizes& sizes, const MixerFactory& factory);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Vectors after the last block, [B,T,E]. Updates `state` unless it is null. In kind
  // encoder_decoder an empty state needs input.source, which is encoded once and kept there; later
  // calls give none.
  Variable encode(const ModelInput& input, ModelState* state) const;
  // The same for a step of several sequences, tokens [B,T], each with a state of its own, which may
  // be at different places: a sequence's vectors have the bits that it has alone in a SmallStep.
  // Keeps no history.
  Variable encode_rows(const Tensor& tokens, std::span<ModelState* const> states) const;
  // The same with the positions [B,T] that follow from the states' lengths given, so that a
  // captured step reads them where they are.
  Variable encode_rows(const Tensor& tokens, const Tensor& positions,
                       std::span<ModelState* const> states) const;
  // The nodes of a tree of tokens [N,1], each after the text of `state`, the nodes above it and
  // nothing else; parents[i] < i, -1 of a node that the text alone is before. Keeps no history.
  TreeReading encode_tree(const Tensor& tokens, std::span<const int64_t> parents,
                          const ModelState& state, TreeStates states = TreeStates::shared) const;
  // What the head makes of them: predicted tokens, or examples. Throws UsageError for a model with
  // a head of the other kind.
  const TokenHead& token_head() const;
  const ExampleHead& example_head() const;
  bool predicts_tokens() const {
    return std::holds_alternative<std::unique_ptr<const TokenHead>>(head_);
  }
  // nullptr: it has none.
  const MedusaHeads* medusa() const { return medusa_ ? &*medusa_ : nullptr; }
  // Of the whole model, [B / rows_per_example, classes]. Throws UsageError for examples of another
  // number of rows, and as example_head().
  Variable example_logits(const ModelInput& input) const;

  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  const ModelConfig& config() const { return config_; }
  int64_t vocabulary() const { return sizes_.vocabulary; }
  int64_t rows_per_example() const { return sizes_.rows_per_example; }
  // The device of its parameters, on which its inputs have to be.
  Device device() const { return parameters_.weights().device(); }
  // Longest sequence the model can process (learned positions, fixed-length mechanisms); 0: any.
  // Needs no weights.
  int64_t length_limit() const;
  // The reason of that limit and how to lift it: "the table of learned positions has 512 rows;
  // ...".
  std::string length_limit_reason() const;
  // Layers whose attention replaces the feed-forward too.
  int64_t layers_without_feed_forward() const;
  // Lets every block's mixer correct its master weights. Call after each optimizer update, before
  // parameters().refresh_values().
  void after_update() const;

 private:
  // Throws UsageError unless the model has so many positions.
  void require_positions(int64_t count) const;
  MixerContext context_of(const ModelInput& input, int64_t offset) const;
  // Tokens as vectors: embedding, positions, token types. `site`: of its dropout.
  Variable embed(const ModelInput& input, const MixerContext& context,
                 const std::string& site) const;
  // The same through the encoder.
  Variable encode_source(const ModelInput& source) const;
  // encode() of kind encoder_decoder.
  Variable decode(const ModelInput& input, ModelState* state) const;
  // Every attention, with the number of its layer.
  std::vector<std::pair<int64_t, const TokenMixer*>> mixers() const;

  ParameterSet parameters_;
  ModelConfig config_;
  ModelSizes sizes_;
  Variable token_table_, position_table_, token_type_table_;
  std::shared_ptr<const AdaptiveTables> adaptive_tables_;  // in place of token_table_
  int64_t position_rows_ = 0;  // positions that the table has, known before it has values
  Norm embedding_norm_;
  std::optional<Stack> encoder_;  // of kind encoder_decoder
  std::optional<Stack> stack_;    // the last one, whose vectors the head reads
  Head head_;
  std::optional<MedusaHeads> medusa_;
};

}  // namespace linnet
