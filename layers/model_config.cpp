#include "layers/model_config.h"

namespace linnet {

void ModelConfig::describe(ConfigDescription<ModelConfig>& d) {
  d.choice("kind", &ModelConfig::kind, {"decoder", "encoder"},
           "decoder: language model; encoder: classifier");
  d.field("layers", &ModelConfig::layers, "transformer blocks").range(1, 1000);
  d.field("width", &ModelConfig::width, "hidden size: the size of a token's vector")
      .range(1, 65536);
  d.field("heads", &ModelConfig::heads, "attention heads; width must be a multiple").range(1, 1024);
  d.field("feed_forward_width", &ModelConfig::feed_forward_width,
          "hidden size of the feed-forward; 0 means 4 * width")
      .range(0, 1 << 20);
  d.choice(
      "activation", &ModelConfig::activation, {"relu", "gelu", "gelu_tanh", "swiglu"},
      "activation of the feed-forward; gelu_tanh: approximated, which GPUs fuse into the product");
  d.choice("norm", &ModelConfig::norm, {"layer", "rms", "scale"},
           "LayerNorm, RMSNorm or ScaleNorm");
  d.choice("norm_position", &ModelConfig::norm_position, {"pre", "post"},
           "before each sublayer, or after its residual sum");
  d.field("final_norm", &ModelConfig::final_norm, "a norm after the last block (pre only)");
  d.field("norm_epsilon", &ModelConfig::norm_epsilon, "floor inside the norms").range(1e-12, 1);
  d.field("dropout", &ModelConfig::dropout, "of sublayer outputs and embeddings")
      .at_least(0)
      .below(1);
  d.field("attention_dropout", &ModelConfig::attention_dropout,
          "of attention probabilities, where the mechanism has them")
      .at_least(0)
      .below(1);
  d.field("activation_dropout", &ModelConfig::activation_dropout, "inside the feed-forward")
      .at_least(0)
      .below(1);
  d.field("layer_dropout", &ModelConfig::layer_dropout, "probability of skipping a whole block")
      .at_least(0)
      .below(1);
  d.choice("positions", &ModelConfig::positions, {"none", "learned", "sinusoidal", "rotary"},
           "position encoding");
  d.field("max_positions", &ModelConfig::max_positions,
          "rows of the learned position table; 0 means the training context")
      .range(0, 1 << 24);
  d.field("token_types", &ModelConfig::token_types,
          "rows of a table that tells the texts of a pair apart; 0: no table")
      .range(0, 1 << 16);
  d.field("scale_embedding", &ModelConfig::scale_embedding,
          "multiply token vectors by sqrt(width), drawing them with deviation 1/sqrt(width)");
  d.field("tie_embeddings", &ModelConfig::tie_embeddings, "one table for input and output");
  d.field("bias", &ModelConfig::bias, "biases in projections and feed-forward");
  d.choice("init", &ModelConfig::init, {"xavier", "uniform", "normal"}, "of linear weights");
  d.choice("pooling", &ModelConfig::pooling, {"mean", "cls"}, "encoder: from tokens to one vector");
  d.field("mean_by_length", &ModelConfig::mean_by_length,
          "encoder: divide the mean by the padded length (as the Long Range Arena code does)");
  d.field("head_width", &ModelConfig::head_width,
          "encoder: hidden size of the classification head; 0 means width")
      .range(0, 1 << 20);
  d.field("attention", &ModelConfig::attention,
          "the mechanism and its parameters; or a list of {layers: 0-5, name: ...}, layer by layer")
      .required();
}

void ModelConfig::validate(const ConfigNode& at) const {
  if (width % heads != 0) {
    throw located_error(at.location_of("width"), "model: width ", width,
                        " must be a multiple of heads ", heads);
  }
  if (positions == "rotary" && (width / heads) % 2 != 0) {
    throw located_error(at.location_of("positions"),
                        "model: rotary positions need an even head width, got ", width / heads);
  }
  const ModelConfig defaults;
  const auto only_for = [&](bool used, bool set, const char* key, const char* where) {
    if (!set || used) return;
    throw located_error(at.location_of(key), "model.", key, " has a meaning only with ", where,
                        "; remove it");
  };
  const bool encoder = kind == "encoder";
  only_for(positions == "learned", max_positions != defaults.max_positions, "max_positions",
           "positions: learned");
  only_for(norm_position == "pre", final_norm != defaults.final_norm, "final_norm",
           "norm_position: pre");
  only_for(!encoder, tie_embeddings != defaults.tie_embeddings, "tie_embeddings", "kind: decoder");
  only_for(encoder, pooling != defaults.pooling, "pooling", "kind: encoder");
  only_for(encoder, head_width != defaults.head_width, "head_width", "kind: encoder");
  only_for(encoder && pooling == "mean", mean_by_length != defaults.mean_by_length,
           "mean_by_length", "kind: encoder and pooling: mean");
}

}  // namespace linnet
