// Whole models: the decoder language model and the encoder classifier.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layers/block.h"

namespace linnet {

// A batch as a model sees it. Undefined tensors take their defaults.
struct ModelInput {
  Tensor tokens;     // i32 [B,T]
  Tensor positions;  // i32 [B,T]; undefined: offset, offset + 1, ...
  Tensor key_mask;   // u8 [B,T]; undefined: all valid
  Tensor segments;   // i32 [B,T]; undefined: one document a row
  // i32 [B,T], which text of a pair a token is of; undefined: all of the first.
  Tensor token_types;
  int64_t rows_per_example = 1;  // 2: rows 2i and 2i+1 are one example, a pair
  DrawPlace place;               // examples must be set while training with dropout
  RandomKey random;
  bool training = false;
  bool recompute = false;  // discard activations inside blocks, recompute them in backward
};

// Decode state of a decoder: every layer's state and the number of tokens seen.
struct ModelState {
  std::vector<MixerState> layers;
  int64_t length = 0;
  // The same values without history.
  ModelState detach() const;
  size_t bytes() const;
};

// Common base of both models: embeddings, positions, blocks, final norm. Owns its parameters.
class Transformer {
 public:
  // `length` is the training context: the size of a learned position table and the length that
  // length-dependent mechanisms are made for. Call parameters().materialize() before the first use.
  Transformer(const ModelConfig& config, int64_t vocabulary, int64_t length, Form form,
              const MixerFactory& factory);
  virtual ~Transformer() = default;
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Vectors after the last block, [B,T,E]. Updates `state` unless it is null.
  Variable encode(const ModelInput& input, ModelState* state) const;

  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  const ModelConfig& config() const { return config_; }
  int64_t vocabulary() const { return vocabulary_; }
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

 protected:
  ParameterSet parameters_;
  ModelConfig config_;
  int64_t vocabulary_;
  Variable token_table_;

 private:
  MixerContext context_of(const ModelInput& input, int64_t offset) const;
  BlockResult run_block(size_t layer, const Variable& x, const MixerContext& context,
                        const MixerState& state, bool recompute_it) const;

  Variable position_table_, token_type_table_;
  int64_t table_rows_ = 0;  // of the position table, known before it has values
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::vector<Variable>> block_parameters_;
  Norm final_norm_;
};

// A causal language model.
class DecoderLm : public Transformer {
 public:
  DecoderLm(const ModelConfig& config, int64_t vocabulary, int64_t length,
            const MixerFactory& factory);
  // [V,E]: the tied embedding or a table of its own. logits = encode(...) table^T.
  const Variable& output_table() const { return output_table_; }

 private:
  Variable output_table_;
};

// Tokens -> classes: pooled encoder and a head Linear - ReLU - Linear (as Long Range Arena's). With
// two rows an example, both go through the one encoder, and the head reads [a; b; a * b; a - b] of
// their pooled vectors.
class EncoderClassifier : public Transformer {
 public:
  // `rows_per_example`: 1 or 2.
  EncoderClassifier(const ModelConfig& config, int64_t vocabulary, int64_t length, int64_t classes,
                    const MixerFactory& factory, int64_t rows_per_example = 1);
  // [B / rows_per_example, classes]. Throws UsageError for examples of another number of rows.
  Variable logits(const ModelInput& input) const;
  int64_t classes() const { return classes_; }
  int64_t rows_per_example() const { return rows_per_example_; }

 private:
  // [B,T,E] -> [B,E].
  Variable pooled(const Variable& x, const Tensor& mask) const;

  int64_t classes_, rows_per_example_;
  Variable hidden_weight_, hidden_bias_, class_weight_, class_bias_;
};

}  // namespace linnet
