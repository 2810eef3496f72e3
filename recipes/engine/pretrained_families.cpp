#include "recipes/engine/pretrained_families.h"

#include <algorithm>
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

using Kind = ConfigField::Kind;

constexpr ConfigField kBertFields[] = {
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
    {Kind::fixed, "model.position_offset", "its first position in row 0", "0"},
    {Kind::count, "model.token_types", "type_vocab_size", "2"},
    {Kind::fixed, "model.embedding_norm", "a norm after the embedding", "true"},
    {Kind::fixed, "model.scale_embedding", "token vectors that are not scaled", "false"},
    {Kind::fixed, "model.bias", "biases", "true"},
    {Kind::rate, "model.dropout", "hidden_dropout_prob", "0.1"},
    {Kind::rate, "model.attention_dropout", "attention_probs_dropout_prob", "0.1"},
};

constexpr ConfigField kRobertaFields[] = {
    {Kind::only, nullptr, "position_embedding_type", "absolute"},
    {Kind::only, nullptr, "is_decoder", "false"},
    {Kind::only, nullptr, "pad_token_id", "1"},  // positions count from behind it
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
    {Kind::fixed, "model.position_offset", "its first position in row 2", "2"},
    {Kind::count, "model.token_types", "type_vocab_size", "2"},
    {Kind::fixed, "model.embedding_norm", "a norm after the embedding", "true"},
    {Kind::fixed, "model.scale_embedding", "token vectors that are not scaled", "false"},
    {Kind::fixed, "model.bias", "biases", "true"},
    {Kind::rate, "model.dropout", "hidden_dropout_prob", "0.1"},
    {Kind::rate, "model.attention_dropout", "attention_probs_dropout_prob", "0.1"},
};

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

struct ActivationName {
  const char* theirs;
  const char* own;
};
constexpr ActivationName kActivations[] = {{"gelu", "gelu"},
                                           {"gelu_new", "gelu_tanh"},
                                           {"gelu_pytorch_tanh", "gelu_tanh"},
                                           {"relu", "relu"}};

std::string activation_of(const ConfigField& field, const std::string& theirs) {
  for (const ActivationName& each : kActivations) {
    if (theirs == each.theirs) return each.own;
  }
  throw UsageError({ErrorCode::unknown_name, field.theirs},
                   concat(field.theirs, " is '", theirs,
                          "'; gelu, gelu_new, gelu_pytorch_tanh and relu are known"));
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
      return concat(member->integer());
    case Kind::flag:
      return member->boolean() ? "true" : "false";
    case Kind::number:
    case Kind::rate:
      return ConfigNode::number(member->number()).raw();
    case Kind::activation:
      return activation_of(field, member->text());
    default:
      return member->is_text() ? member->text() : member->dump();
  }
}

constexpr PretrainedFamily kFamilies[] = {
    {"bert", "bert.", kBertRules, kBertHeads, kBertFields, "BertModel",
     "BertForSequenceClassification", "BertForMaskedLM"},
    {"roberta", "roberta.", kBertRules, kRobertaHeads, kRobertaFields, "RobertaModel",
     "RobertaForSequenceClassification", "RobertaForMaskedLM"},
    {"gpt2", "transformer.", kGpt2Rules, kGpt2Heads, kGpt2Fields, "GPT2LMHeadModel",
     "GPT2ForSequenceClassification", nullptr},
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
  if (!layer.starts_with(kLayers)) return;
  const size_t end = std::min(layer.find('.', kLayers.size()), layer.size());
  number = layer.substr(kLayers.size(), end - kLayers.size());
  layer.replace(kLayers.size(), number.size(), "*");
}

const WeightRule* rule_of(const PretrainedFamily& family, const OwnName& own) {
  for (const WeightRule* rule : family.rules()) {
    if (own.layer == rule->own) return rule;
  }
  return nullptr;
}

std::string name_there(const WeightRule& rule, const OwnName& own) {
  std::string name = concat(rule.theirs, ".", own.leaf == "gain" ? "weight" : own.leaf);
  const size_t star = name.find('*');
  return star == std::string::npos ? name : name.replace(star, 1, own.number);
}

Shape shape_there(const Shape& own, const WeightRule& rule) {
  if (own.rank() == 0) return own;
  std::vector<int64_t> sizes = own.sizes();
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
      for (const ActivationName& each : kActivations) {
        if (value == each.own) return each.theirs;
      }
      return {};
    case Kind::number:
    case Kind::rate:
      return std::stod(value);
    case Kind::count:
      return std::stoll(value);
    default:
      if (value == "true" || value == "false") return value == "true";
      return value == "1" ? JsonValue(1) : JsonValue(value);
  }
}

}  // namespace linnet
