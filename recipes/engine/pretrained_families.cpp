#include "recipes/engine/pretrained_families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "core/config.h"
#include "core/error.h"

namespace linnet {
namespace {

// BERT and RoBERTa, whose blocks have the same names.
constexpr WeightRule kBertRules[] = {
    {"embedding", "embeddings.word_embeddings"},
    {"positions", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"embedding_norm", "embeddings.LayerNorm"},
    {"layers.*.attention.q", "encoder.layer.*.attention.self.query"},
    {"layers.*.attention.k", "encoder.layer.*.attention.self.key"},
    {"layers.*.attention.v", "encoder.layer.*.attention.self.value"},
    {"layers.*.attention.out", "encoder.layer.*.attention.output.dense"},
    {"layers.*.attention_norm", "encoder.layer.*.attention.output.LayerNorm"},
    {"layers.*.feed_forward.in", "encoder.layer.*.intermediate.dense"},
    {"layers.*.feed_forward.out", "encoder.layer.*.output.dense"},
    {"layers.*.feed_forward_norm", "encoder.layer.*.output.LayerNorm"},
};

constexpr WeightRule kBertHeads[] = {
    {.own = "head.pooler", .theirs = "pooler.dense"},
    {.own = "head.classes", .theirs = "classifier", .bare = true},
    {.own = "head.dense", .theirs = "cls.predictions.transform.dense", .bare = true},
    {.own = "head.norm", .theirs = "cls.predictions.transform.LayerNorm", .bare = true},
    {.own = "head", .theirs = "cls.predictions", .bare = true},  // the bias of each word
};

constexpr WeightRule kRobertaHeads[] = {
    {.own = "head.pooler", .theirs = "classifier.dense", .bare = true},
    {.own = "head.pooler", .theirs = "pooler.dense"},
    {.own = "head.classes", .theirs = "classifier.out_proj", .bare = true},
    {.own = "head.dense", .theirs = "lm_head.dense", .bare = true},
    {.own = "head.norm", .theirs = "lm_head.layer_norm", .bare = true},
    {.own = "head", .theirs = "lm_head", .bare = true},  // the bias of each word
};

constexpr WeightRule kGpt2Rules[] = {
    {"embedding", "wte"},
    {"positions", "wpe"},
    {"layers.*.attention_norm", "h.*.ln_1"},
    {"layers.*.attention.q", "h.*.attn.c_attn", true, 0, 3},
    {"layers.*.attention.k", "h.*.attn.c_attn", true, 1, 3},
    {"layers.*.attention.v", "h.*.attn.c_attn", true, 2, 3},
    {"layers.*.attention.out", "h.*.attn.c_proj", true},
    {"layers.*.feed_forward_norm", "h.*.ln_2"},
    {"layers.*.feed_forward.in", "h.*.mlp.c_fc", true},
    {"layers.*.feed_forward.out", "h.*.mlp.c_proj", true},
    {"final_norm", "ln_f"},
};

constexpr WeightRule kGpt2Heads[] = {
    {.own = "output", .theirs = "lm_head", .bare = true},
    {.own = "head.classes", .theirs = "score", .bare = true},
};

constexpr WeightRule kT5Rules[] = {
    {"embedding", "shared"},
    {"encoder.layers.*.attention_norm", "encoder.block.*.layer.0.layer_norm"},
    {"encoder.layers.*.attention.q", "encoder.block.*.layer.0.SelfAttention.q"},
    {"encoder.layers.*.attention.k", "encoder.block.*.layer.0.SelfAttention.k"},
    {"encoder.layers.*.attention.v", "encoder.block.*.layer.0.SelfAttention.v"},
    {"encoder.layers.*.attention.out", "encoder.block.*.layer.0.SelfAttention.o"},
    {.own = "encoder.tied_attention.distance_bias",
     .theirs = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
     .transposed = true,
     .columns = 32},
    {"encoder.layers.*.feed_forward_norm", "encoder.block.*.layer.1.layer_norm"},
    {.own = "encoder.layers.*.feed_forward.in",
     .theirs = "encoder.block.*.layer.1.DenseReluDense.wi_1",
     .gated = true},
    {"encoder.layers.*.feed_forward.in", "encoder.block.*.layer.1.DenseReluDense.wi"},
    {"encoder.layers.*.feed_forward.gate", "encoder.block.*.layer.1.DenseReluDense.wi_0"},
    {"encoder.layers.*.feed_forward.out", "encoder.block.*.layer.1.DenseReluDense.wo"},
    {"encoder.final_norm", "encoder.final_layer_norm"},
    {"decoder.layers.*.attention_norm", "decoder.block.*.layer.0.layer_norm"},
    {"decoder.layers.*.attention.q", "decoder.block.*.layer.0.SelfAttention.q"},
    {"decoder.layers.*.attention.k", "decoder.block.*.layer.0.SelfAttention.k"},
    {"decoder.layers.*.attention.v", "decoder.block.*.layer.0.SelfAttention.v"},
    {"decoder.layers.*.attention.out", "decoder.block.*.layer.0.SelfAttention.o"},
    {.own = "decoder.tied_attention.distance_bias",
     .theirs = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
     .transposed = true,
     .columns = 32},
    {"decoder.layers.*.cross_attention_norm", "decoder.block.*.layer.1.layer_norm"},
    {"decoder.layers.*.cross_attention.q", "decoder.block.*.layer.1.EncDecAttention.q"},
    {"decoder.layers.*.cross_attention.k", "decoder.block.*.layer.1.EncDecAttention.k"},
    {"decoder.layers.*.cross_attention.v", "decoder.block.*.layer.1.EncDecAttention.v"},
    {"decoder.layers.*.cross_attention.out", "decoder.block.*.layer.1.EncDecAttention.o"},
    {"decoder.layers.*.feed_forward_norm", "decoder.block.*.layer.2.layer_norm"},
    {.own = "decoder.layers.*.feed_forward.in",
     .theirs = "decoder.block.*.layer.2.DenseReluDense.wi_1",
     .gated = true},
    {"decoder.layers.*.feed_forward.in", "decoder.block.*.layer.2.DenseReluDense.wi"},
    {"decoder.layers.*.feed_forward.gate", "decoder.block.*.layer.2.DenseReluDense.wi_0"},
    {"decoder.layers.*.feed_forward.out", "decoder.block.*.layer.2.DenseReluDense.wo"},
    {"decoder.final_norm", "decoder.final_layer_norm"},
};

constexpr WeightRule kT5Heads[] = {
    {.own = "head.pooler", .theirs = "classification_head.dense", .bare = true},
    {.own = "head.classes", .theirs = "classification_head.out_proj", .bare = true},
};

using Kind = ConfigField::Kind;

// Of BERT and RoBERTa, before what each has of its own.
constexpr ConfigField kEncoderFields[] = {
    {Kind::only, nullptr, "position_embedding_type", "absolute"},
    {Kind::only, nullptr, "is_decoder", "false"},
    {Kind::fixed, "model.kind", "noncausal attention", "encoder"},
    {Kind::count, "model.layers", "num_hidden_layers", nullptr},
    {Kind::count, "model.width", "hidden_size", nullptr},
    {Kind::count, "model.heads", "num_attention_heads", nullptr},
    {Kind::count, "model.feed_forward_width", "intermediate_size", nullptr},
    {Kind::activation, "model.activation", "hidden_act", "gelu"},
    {Kind::fixed, "model.norm", "LayerNorm", "layer"},
    {Kind::fixed, "model.norm_position", "a norm after each residual sum", "post"},
    {Kind::number, "model.norm_epsilon", "layer_norm_eps", "1e-12"},
    {Kind::fixed, "model.positions", "a table of positions", "learned"},
    {Kind::count, "model.max_positions", "max_position_embeddings", "512"},
    {Kind::count, "model.token_types", "type_vocab_size", "2"},
    {Kind::fixed, "model.embedding_norm", "a norm after the embedding", "true"},
    {Kind::fixed, "model.scale_embedding", "token vectors that are not scaled", "false"},
    {Kind::fixed, "model.bias", "biases", "true"},
    {Kind::rate, "model.dropout", "hidden_dropout_prob", "0.1"},
    {Kind::rate, "model.attention_dropout", "attention_probs_dropout_prob", "0.1"},
};

template <size_t N>
constexpr auto encoder_fields_and(const std::array<ConfigField, N>& own) {
  std::array<ConfigField, std::size(kEncoderFields) + N> all{};
  std::copy(std::begin(kEncoderFields), std::end(kEncoderFields), all.begin());
  std::copy(own.begin(), own.end(), all.begin() + std::size(kEncoderFields));
  return all;
}

constexpr auto kBertFields = encoder_fields_and(std::array<ConfigField, 1>{{
    {Kind::fixed, "model.position_offset", "its first position in row 0", "0"},
}});

constexpr auto kRobertaFields = encoder_fields_and(std::array<ConfigField, 2>{{
    {Kind::only, nullptr, "pad_token_id", "1"},  // positions count from behind it
    {Kind::fixed, "model.position_offset", "its first position in row 2", "2"},
}});

constexpr ConfigField kGpt2Fields[] = {
    {Kind::only, nullptr, "scale_attn_by_inverse_layer_idx", "false"},
    {Kind::only, nullptr, "add_cross_attention", "false"},
    {Kind::only, nullptr, "scale_attn_weights", "true"},
    {Kind::fixed, "model.kind", "causal attention", "decoder"},
    {Kind::count, "model.layers", "n_layer", nullptr},
    {Kind::count, "model.width", "n_embd", nullptr},
    {Kind::count, "model.heads", "n_head", nullptr},
    {Kind::count, "model.feed_forward_width", "n_inner", "0"},
    {Kind::activation, "model.activation", "activation_function", "gelu_tanh"},
    {Kind::fixed, "model.norm", "LayerNorm", "layer"},
    {Kind::fixed, "model.norm_position", "a norm before each sublayer", "pre"},
    {Kind::fixed, "model.final_norm", "a norm after the last block", "true"},
    {Kind::number, "model.norm_epsilon", "layer_norm_epsilon", "1e-05"},
    {Kind::fixed, "model.positions", "a table of positions", "learned"},
    {Kind::count, "model.max_positions", "n_positions", "1024"},
    {Kind::fixed, "model.position_offset", "its first position in row 0", "0"},
    {Kind::fixed, "model.token_types", "no table of token types", "0"},
    {Kind::fixed, "model.embedding_norm", "no norm after the embedding", "false"},
    {Kind::fixed, "model.scale_embedding", "token vectors that are not scaled", "false"},
    {Kind::flag, "model.tie_embeddings", "tie_word_embeddings", "true"},
    {Kind::fixed, "model.bias", "biases", "true"},
    {Kind::rate, "model.dropout", "resid_pdrop", "0.1"},
    {Kind::rate, "model.attention_dropout", "attn_pdrop", "0.1"},
};

// T5 and T5 v1.1. Its dropouts have one rate.
constexpr ConfigField kT5Fields[] = {
    {Kind::only, nullptr, "is_encoder_decoder", "true"},
    {Kind::only, nullptr, "relative_attention_num_buckets", "32"},
    {Kind::only, nullptr, "relative_attention_max_distance", "128"},
    {Kind::fixed, "model.kind", "an encoder and a decoder", "encoder_decoder"},
    {Kind::count, "model.layers", "num_layers", nullptr},
    {Kind::count, "model.decoder_layers", "num_decoder_layers", "0"},
    {Kind::count, "model.width", "d_model", nullptr},
    {Kind::count, "model.heads", "num_heads", nullptr},
    {Kind::head_width, nullptr, "d_kv", "64"},
    {Kind::count, "model.feed_forward_width", "d_ff", nullptr},
    {Kind::gated_activation, "model.activation", "feed_forward_proj", "relu"},
    {Kind::fixed, "model.norm", "norms without mean and bias", "rms"},
    {Kind::fixed, "model.norm_position", "a norm before each sublayer", "pre"},
    {Kind::fixed, "model.final_norm", "a norm after the last block", "true"},
    {Kind::number, "model.norm_epsilon", "layer_norm_epsilon", "1e-06"},
    {Kind::fixed, "model.positions", "no positions but distances in its attention", "none"},
    {Kind::fixed, "model.token_types", "no table of token types", "0"},
    {Kind::fixed, "model.embedding_norm", "no norm after the embedding", "false"},
    {Kind::fixed, "model.scale_embedding", "token vectors that are not scaled", "false"},
    {Kind::fixed, "model.bias", "no biases", "false"},
    {Kind::count, "model.decoder_start", "decoder_start_token_id", "0"},
    {Kind::rate, "model.attention_dropout", "dropout_rate", "0.1"},
    {Kind::rate, "model.activation_dropout", "dropout_rate", "0.1"},
    {Kind::rate, "model.dropout", "dropout_rate", "0.1"},
};

struct ActivationName {
  const char* theirs;
  const char* own;
};
constexpr ActivationName kActivations[] = {{"gelu", "gelu"},
                                           {"gelu_new", "gelu_tanh"},
                                           {"gelu_pytorch_tanh", "gelu_tanh"},
                                           {"relu", "relu"}};

constexpr ActivationName kGatedActivations[] = {
    {"relu", "relu"}, {"gated-gelu", "geglu"}, {"gated-silu", "swiglu"}};

std::span<const ActivationName> activations_of(const ConfigField& field) {
  if (field.kind == Kind::gated_activation) return kGatedActivations;
  return kActivations;
}

std::string activation_of(const ConfigField& field, const std::string& theirs) {
  std::string known;
  for (const ActivationName& each : activations_of(field)) {
    if (theirs == each.theirs) return each.own;
    known += concat(known.empty() ? "" : ", ", each.theirs);
  }
  throw UsageError({ErrorCode::unknown_name, field.theirs},
                   concat(field.theirs, " is '", theirs, "'; known are ", known));
}

// As a recipe has it.
std::string value_of(const ConfigField& field, const JsonValue* member) {
  if (field.kind == Kind::fixed) return field.value;
  if (member == nullptr || member->is_null()) {
    require_usage(field.value != nullptr, Cause{ErrorCode::missing_key, field.theirs},
                  "there is no ", field.theirs);
    return field.value;
  }
  switch (field.kind) {
    case Kind::count:
    case Kind::head_width:
      return concat(member->integer());
    case Kind::flag:
      return member->boolean() ? "true" : "false";
    case Kind::number:
    case Kind::rate:
      return ConfigNode::number(member->number()).raw();
    case Kind::activation:
    case Kind::gated_activation:
      return activation_of(field, member->text());
    default:
      return member->is_text() ? member->text() : member->dump();
  }
}

// That `value` is the width by the heads among the keys.
void require_head_width(const std::vector<RecipeKey>& keys, const char* theirs,
                        const std::string& value) {
  int64_t width = 0, heads = 1;
  for (const RecipeKey& each : keys) {
    if (each.key == "model.width") width = std::stoll(each.value);
    if (each.key == "model.heads") heads = std::max<int64_t>(std::stoll(each.value), 1);
  }
  require_usage(std::stoll(value) * heads == width, Cause{ErrorCode::conflict, theirs}, theirs,
                " is ", value, ", and linnet has heads of width / heads only, ", width, " / ",
                heads);
}

constexpr PretrainedFamily kFamilies[] = {
    {"bert", "bert.", kBertRules, kBertHeads, kBertFields, "BertModel",
     "BertForSequenceClassification", "BertForMaskedLM", "{name: softmax}"},
    {"roberta", "roberta.", kBertRules, kRobertaHeads, kRobertaFields, "RobertaModel",
     "RobertaForSequenceClassification", "RobertaForMaskedLM", "{name: softmax}"},
    {"gpt2", "transformer.", kGpt2Rules, kGpt2Heads, kGpt2Fields, "GPT2LMHeadModel",
     "GPT2ForSequenceClassification", nullptr, "{name: softmax}"},
    {"t5", "transformer.", kT5Rules, kT5Heads, kT5Fields, "T5Model", "T5ForSequenceClassification",
     nullptr, "{name: softmax, preset: t5}"},
};

}  // namespace

std::span<const PretrainedFamily> pretrained_families() {
  return kFamilies;
}

const PretrainedFamily* find_pretrained_family(std::string_view name) {
  for (const PretrainedFamily& family : kFamilies) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

std::string pretrained_family_names() {
  std::string text;
  for (const PretrainedFamily& family : kFamilies) {
    const bool last = &family == std::end(kFamilies) - 1;
    text += concat(text.empty() ? "" : last ? " or " : ", ", family.name);
  }
  return text;
}

std::vector<const WeightRule*> PretrainedFamily::rules() const {
  std::vector<const WeightRule*> all;
  for (const std::span<const WeightRule> part : {trunk, heads}) {
    for (const WeightRule& rule : part) all.push_back(&rule);
  }
  return all;
}

OwnName::OwnName(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t dot = name.rfind('.');
  layer = name.substr(0, dot);
  if (dot != std::string::npos) leaf = name.substr(dot + 1);
  const size_t at = layer.find(kLayers);
  if (at == std::string::npos || (at > 0 && layer[at - 1] != '.')) return;
  const size_t begin = at + kLayers.size(), end = std::min(layer.find('.', begin), layer.size());
  number = layer.substr(begin, end - begin);
  layer.replace(begin, number.size(), "*");
}

bool OwnName::is_of(const WeightRule& rule) const {
  return layer == rule.own || concat(layer, ".", leaf) == rule.own;
}

const WeightRule* rule_of(const PretrainedFamily& family, const OwnName& own, bool gated) {
  for (const WeightRule* rule : family.rules()) {
    if (own.is_of(*rule) && (gated || !rule->gated)) return rule;
  }
  return nullptr;
}

std::string name_there(const WeightRule& rule, const OwnName& own) {
  const bool whole = own.layer != rule.own;
  std::string name = concat(rule.theirs, ".", whole || own.leaf == "gain" ? "weight" : own.leaf);
  const size_t star = name.find('*');
  return star == std::string::npos ? name : name.replace(star, 1, own.number);
}

Shape matrix_of(const Shape& own, const WeightRule& rule) {
  if (rule.columns == 0) return own;
  return {own.elements() / rule.columns, rule.columns};
}

Shape shape_there(const Shape& own, const WeightRule& rule) {
  if (own.rank() == 0) return own;
  std::vector<int64_t> sizes = matrix_of(own, rule).to_vector();
  sizes[0] *= rule.parts;
  if (rule.transposed && sizes.size() == 2) std::swap(sizes[0], sizes[1]);
  return Shape(std::move(sizes));
}

std::vector<RecipeKey> recipe_keys(const PretrainedFamily& family, const JsonValue& config,
                                   bool rates) {
  std::vector<RecipeKey> keys;
  for (const ConfigField& field : family.fields) {
    const JsonValue* member = field.kind == Kind::fixed ? nullptr : config.find(field.theirs);
    std::string value = value_of(field, member);
    if (field.kind == Kind::only) {
      require_usage(value == field.value, Cause{ErrorCode::unknown_name, field.theirs},
                    field.theirs, " is ", value, ", and linnet has only ", field.value);
      continue;
    }
    if (field.kind == Kind::head_width) {
      if (!rates) require_head_width(keys, field.theirs, value);
      continue;
    }
    if ((field.kind == Kind::rate) != rates) continue;
    const std::string why =
        field.kind == Kind::fixed ? field.theirs : concat(field.theirs, " ", value);
    keys.push_back({field.key, std::move(value), why});
  }
  return keys;
}

JsonValue config_value(const ConfigField& field, const std::string& value) {
  switch (field.kind) {
    case Kind::activation:
    case Kind::gated_activation:
      for (const ActivationName& each : activations_of(field)) {
        if (value == each.own) return each.theirs;
      }
      return {};
    case Kind::number:
    case Kind::rate:
      return std::stod(value);
    case Kind::count:
    case Kind::head_width:
      return std::stoll(value);
    default:
      if (value == "true" || value == "false") return value == "true";
      const bool number = value.find_first_not_of("0123456789") == std::string::npos;
      return number ? JsonValue(std::stoll(value)) : JsonValue(value);
  }
}

}  // namespace linnet
