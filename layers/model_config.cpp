#include "layers/model_config.h"

#include <algorithm>
#include <functional>

#include "layers/heads.h"
#include "layers/models.h"

namespace linnet {

void ModelConfig::describe(ConfigDescription<ModelConfig>& d) {
  d.field("kind", &ModelConfig::kind,
          "decoder: causal attention, for language models and classifiers; encoder: noncausal "
          "attention, for classifiers and masked language models; encoder_decoder: a decoder that "
          "reads an encoder of the same tokens, for classifiers, as T5, or, with head: table, of a "
          "source, for sequence-to-sequence models")
      .choices(model_kinds());
  d.field("layers", &ModelConfig::layers, "transformer blocks").range(1, 1000);
  d.field("decoder_layers", &ModelConfig::decoder_layers,
          "kind encoder_decoder: blocks of the decoder; 0 means layers")
      .range(0, 1000);
  d.field("decoder_start", &ModelConfig::decoder_start,
          "kind encoder_decoder: id before the tokens of the decoder, which has them one place to "
          "the right (T5's: 0)")
      .range(0, 1 << 30);
  d.field("width", &ModelConfig::width, "hidden size: the size of a token's vector")
      .range(1, 65536);
  d.field("heads", &ModelConfig::heads, "attention heads; width must be a multiple").range(1, 1024);
  d.field("kv_heads", &ModelConfig::kv_heads,
          "heads of keys and values, each shared by so many heads of queries that they come out "
          "even, where the mechanism can (grouped-query attention); 0 means heads")
      .range(0, 1024);
  d.field("feed_forward_width", &ModelConfig::feed_forward_width,
          "hidden size of the feed-forward; 0 means 4 * width")
      .range(0, 1 << 20);
  d.choice(
      "activation", &ModelConfig::activation, {"relu", "gelu", "gelu_tanh", "swiglu", "geglu"},
      "activation of the feed-forward; gelu_tanh: approximated, which GPUs fuse into the product; "
      "swiglu, geglu: with a gate, by silu or gelu_tanh");
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
  d.field("position_offset", &ModelConfig::position_offset,
          "row of the first position in the learned table (RoBERTa's: 2)")
      .range(0, 1 << 16);
  d.field("token_types", &ModelConfig::token_types,
          "rows of a table that tells the texts of a pair apart; 0: no table")
      .range(0, 1 << 16);
  d.field("embedding_norm", &ModelConfig::embedding_norm,
          "a norm after the sum of token vectors, positions and types, as BERT has it");
  d.field("scale_embedding", &ModelConfig::scale_embedding,
          "multiply token vectors by sqrt(width), drawing them with deviation 1/sqrt(width)");
  d.field("tie_embeddings", &ModelConfig::tie_embeddings, "one table for input and output");
  d.field("bias", &ModelConfig::bias, "biases in projections and feed-forward");
  d.choice("init", &ModelConfig::init, {"xavier", "uniform", "normal"}, "of linear weights");
  d.field("head", &ModelConfig::head,
          "what follows the last block: table: the next token, by the embedding's table or one of "
          "its own; adaptive: the next token, by its band of the vocabulary (adaptive softmax); "
          "masked_lm: the masked tokens, Linear - activation - norm, the embedding's table and a "
          "bias, as BERT and RoBERTa; lra: pooled tokens, Linear - ReLU - Linear, as the Long "
          "Range Arena code; pooler: the first token (in an encoder_decoder the last valid one), "
          "Linear - tanh - Linear, as BERT, RoBERTa and T5; last_token: the last valid token, "
          "Linear, as GPT-2; auto: in a decoder table, or adaptive as the embedding, in an encoder "
          "lra, in an encoder_decoder pooler")
      .choices(head_names());
  d.choice("embedding", &ModelConfig::embedding, {"table", "adaptive"},
           "token vectors: a row of one table, or adaptive inputs: frequent words have wider rows");
  d.list("cutoffs", &ModelConfig::cutoffs,
         "embedding and head adaptive: the first words of the second band and of those behind it, "
         "of a vocabulary whose frequent words come first")
      .range(1, 1 << 30);
  d.field("cutoff_factor", &ModelConfig::cutoff_factor,
          "embedding and head adaptive: how many times narrower the rows of a band are than those "
          "of the band before")
      .range(1, 1024);
  d.field("head_dropout", &ModelConfig::head_dropout,
          "head adaptive: of its input and of the vectors that its tails read")
      .at_least(0)
      .below(1);
  d.field("head_compat", &ModelConfig::head_compat,
          "head adaptive: leave the second word of every tail out of the tail's loss, as fairseq "
          "does by mistake, for comparisons with published perplexities");
  d.choice("pooling", &ModelConfig::pooling, {"mean", "cls"},
           "head lra: from tokens to one vector");
  d.field("mean_by_length", &ModelConfig::mean_by_length,
          "head lra: divide the mean by the padded length (as the Long Range Arena code does)");
  d.field("head_width", &ModelConfig::head_width,
          "head lra: hidden size of the classification head; 0 means width")
      .range(0, 1 << 20);
  d.nested("medusa", &ModelConfig::medusa,
           "head table: Medusa heads, which guess later tokens, for 'generate --speculate'");
  d.field("attention", &ModelConfig::attention,
          "the mechanism and its parameters; or a list of {layers: 0-5, name: ...}, layer by layer")
      .required();
  d.field("decoder_attention", &ModelConfig::decoder_attention,
          "kind encoder_decoder: the decoder's self-attention; absent: as attention");
  d.field("cross_attention", &ModelConfig::cross_attention,
          "kind encoder_decoder: what reads the encoder; absent: as attention");
}

void ModelConfig::validate(const ConfigNode& at) const {
  if (width % heads != 0) {
    throw located_error(at.location_of("width"), "model: width ", width,
                        " must be a multiple of heads ", heads);
  }
  if (kv_heads > 0 && heads % kv_heads != 0) {
    throw located_error(at.location_of("kv_heads"), Cause{ErrorCode::conflict, "kv_heads"},
                        "model: heads ", heads, " must be a multiple of kv_heads ", kv_heads);
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
  const bool lra = head == "lra" || (head == "auto" && kind == "encoder");
  only_for(positions == "learned", max_positions != defaults.max_positions, "max_positions",
           "positions: learned");
  only_for(positions == "learned", position_offset != defaults.position_offset, "position_offset",
           "positions: learned");
  only_for(norm_position == "pre", final_norm != defaults.final_norm, "final_norm",
           "norm_position: pre");
  only_for(predicts_tokens() && head != "masked_lm", tie_embeddings != defaults.tie_embeddings,
           "tie_embeddings", "head: table or adaptive, a decoder's");
  const bool adaptive = embedding == "adaptive" || head == "adaptive";
  only_for(adaptive, !cutoffs.empty(), "cutoffs", "embedding: adaptive");
  only_for(adaptive, cutoff_factor != defaults.cutoff_factor, "cutoff_factor",
           "embedding: adaptive");
  only_for(has_adaptive_head(), head_dropout != defaults.head_dropout, "head_dropout",
           "head: adaptive");
  only_for(has_adaptive_head(), head_compat != defaults.head_compat, "head_compat",
           "head: adaptive");
  if (adaptive &&
      (cutoffs.empty() || std::adjacent_find(cutoffs.begin(), cutoffs.end(),
                                             std::greater_equal<>()) != cutoffs.end())) {
    throw located_error(at.location_of(cutoffs.empty() ? "embedding" : "cutoffs"),
                        Cause{ErrorCode::conflict, "cutoffs"},
                        "model.cutoffs must be rising numbers of words for adaptive bands, such as "
                        "[20000, 60000]");
  }
  if (head == "adaptive" && tie_embeddings && embedding != "adaptive") {
    throw located_error(at.location_of("head"), Cause{ErrorCode::conflict, "head"},
                        "model.head adaptive shares the tables of an adaptive embedding: set "
                        "model.embedding=adaptive, or model.tie_embeddings=false");
  }
  only_for(lra, pooling != defaults.pooling, "pooling", "head: lra, an encoder's");
  only_for(lra, head_width != defaults.head_width, "head_width", "head: lra, an encoder's");
  only_for(lra && pooling == "mean", mean_by_length != defaults.mean_by_length, "mean_by_length",
           "head: lra, an encoder's, and pooling: mean");
  const bool both = kind_has_encoder(kind);
  const char* encoder_decoder = "kind: encoder_decoder";
  only_for(both, decoder_layers != defaults.decoder_layers, "decoder_layers", encoder_decoder);
  only_for(both, decoder_start != defaults.decoder_start, "decoder_start", encoder_decoder);
  only_for(both, !decoder_attention.is_null(), "decoder_attention", encoder_decoder);
  only_for(both, !cross_attention.is_null(), "cross_attention", encoder_decoder);
  if (both && predicts_tokens() && head != "table") {
    throw located_error(at.location_of("head"), Cause{ErrorCode::conflict, "head"}, "model.head ",
                        head,
                        " is for models of one stack; an encoder_decoder predicts tokens by "
                        "model.head=table, and classifies by model.head=pooler");
  }
  if (medusa.heads > 0 && (kind != "decoder" || !has_table_head())) {
    throw located_error(at.location_of("medusa"), Cause{ErrorCode::conflict, "medusa"},
                        "model.medusa guesses later tokens by tables like the head's, and needs "
                        "kind: decoder and head: table; remove it, or set these");
  }
  if (reads_first_token() && form_of_kind(kind) == Form::causal) {
    const char* key = head == "pooler" ? "head" : "pooling";
    throw located_error(at.location_of(key), Cause{ErrorCode::conflict, key}, "model.", key,
                        " makes the model read a row's first token, which sees no other in a ",
                        kind, "; set model.kind=encoder, or model.head=last_token");
  }
  if (max_positions > 0 && max_positions <= position_offset) {
    throw located_error(at.location_of("max_positions"), "model: max_positions ", max_positions,
                        " must be more than position_offset ", position_offset);
  }
}

}  // namespace linnet
