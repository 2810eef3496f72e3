// The `model:` section of a recipe.
#pragma once

#include <string>
#include <vector>

#include "core/config.h"
#include "layers/medusa.h"

namespace linnet {

struct ModelConfig {
  std::string kind = "decoder";
  int64_t layers = 4;
  int64_t width = 256;
  int64_t heads = 4;
  int64_t kv_heads = 0;            // 0: heads
  int64_t feed_forward_width = 0;  // 0: 4 * width
  std::string activation = "gelu";
  std::string norm = "layer";
  std::string norm_position = "pre";
  bool final_norm = true;
  double norm_epsilon = 1e-5;
  double dropout = 0;
  double attention_dropout = 0;
  double activation_dropout = 0;
  double layer_dropout = 0;
  std::string positions = "sinusoidal";
  int64_t max_positions = 0;    // 0: the training context
  int64_t position_offset = 0;  // row of position 0 in a learned table
  int64_t token_types = 0;      // 0: no table
  bool embedding_norm = false;
  bool scale_embedding = true;
  bool tie_embeddings = true;
  bool bias = true;
  std::string init = "xavier";
  std::string embedding = "table";
  // Of embedding or head adaptive only.
  std::vector<int64_t> cutoffs;
  int64_t cutoff_factor = 4;
  double head_dropout = 0;
  bool head_compat = false;
  std::string head = "auto";
  // Of head lra only.
  std::string pooling = "mean";
  bool mean_by_length = false;
  int64_t head_width = 0;
  MedusaConfig medusa;
  // Of kind encoder_decoder only.
  int64_t decoder_layers = 0;  // 0: as many as layers
  int64_t decoder_start = 0;   // the token before the decoder's tokens
  // The mechanism: {name: lavo, rank: 64}, or a list of these with their `layers`.
  ConfigNode attention;
  // Of kind encoder_decoder only: the decoder's; null: as `attention`.
  ConfigNode decoder_attention, cross_attention;

  // Whether the head predicts tokens, as in any decoder of which nothing is said.
  bool predicts_tokens() const {
    return head == "table" || head == "adaptive" || head == "masked_lm" ||
           (head == "auto" && kind == "decoder");
  }
  bool has_adaptive_head() const {
    return head == "adaptive" || (head == "auto" && predicts_tokens() && embedding == "adaptive");
  }
  // Whether the head multiplies with one table for all words.
  bool has_table_head() const {
    return head == "table" || (head == "auto" && kind == "decoder" && embedding == "table");
  }
  // Whether the vector of a row's first token stands for the row.
  bool reads_first_token() const {
    return (head == "pooler" && kind != "encoder_decoder") || pooling == "cls";
  }
  // Whether the feed-forward has a third matrix.
  bool has_gate() const { return activation == "swiglu" || activation == "geglu"; }
  int64_t layers_of_decoder() const { return decoder_layers > 0 ? decoder_layers : layers; }
  int64_t hidden_width() const { return feed_forward_width > 0 ? feed_forward_width : 4 * width; }
  static void describe(ConfigDescription<ModelConfig>& d);
  void validate(const ConfigNode& at) const;
};

}  // namespace linnet
