#include "recipes/engine/pretrained_export.h"

#include <algorithm>

#include "attention/layer_choice.h"
#include "core/files.h"
#include "core/safetensors.h"
#include "core/yaml.h"
#include "layers/attention_sections.h"
#include "recipes/engine/pretrained.h"
#include "recipes/engine/weight_differences.h"

namespace linnet {
namespace {

using Kind = ConfigField::Kind;

// config.json of the model in that family; where it is none of it, the first key that differs.
JsonValue config_of(const LoadedModel& loaded, const PretrainedFamily& family,
                    std::string& differs) {
  JsonValue config = JsonValue::object();
  config.set("model_type", family.name);
  const ModelConfig& model = loaded.recipe.model;
  if (model.embedding != "table") differs = concat(family.name, " needs model.embedding: table");
  if (model.kv_heads > 0 && model.kv_heads < model.heads) {
    differs = concat(family.name, " needs as many model.kv_heads as model.heads");
  }
  if (!differs.empty()) return config;
  for (const ConfigField& field : family.fields) {
    if (field.kind == Kind::only) {
      config.set(field.theirs, config_value(field, field.value));
      continue;
    }
    if (field.kind == Kind::head_width) {
      config.set(field.theirs, model.width / model.heads);
      continue;
    }
    const std::string value = model_value(loaded.recipe, field.key);
    const bool no_types = field.theirs == std::string_view("type_vocab_size") && value == "0";
    if (no_types) differs = concat(family.name, " needs ", field.key, " of at least 1");
    if (no_types) break;
    const bool fixed = field.kind == Kind::fixed;
    JsonValue member = fixed ? JsonValue() : config_value(field, value);
    if (fixed ? value != field.value : member.is_null()) {
      differs = fixed ? concat(family.name, " needs ", field.key, ": ", field.value)
                      : concat(family.name, " has no ", field.key, " ", value);
      break;
    }
    if (!fixed) config.set(field.theirs, std::move(member));
  }
  return config.set("vocab_size", loaded.model->vocabulary());
}

// Whether every layer has the attention that readers of these files compute: softmax, of
// q . k / sqrt(K), or with T5's scale and bias.
bool has_attention_of(const PretrainedFamily& family, const ModelConfig& model) {
  const ConfigNode theirs = parse_yaml(family.attention, family.name);
  const ResolvedAttention plain = resolve_attention(theirs, Form::noncausal, 1);
  for (const AttentionSection& section : attention_sections(model)) {
    for (const LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      const ConfigNode own = resolve_attention(choice.attention, section.form, 1).node;
      if (own.find("name")->raw() != "softmax") return false;
      // Cross-attention has no bias.
      if (*own.find("scale") != *plain.node.find("scale")) return false;
      if (section.form != Form::cross && *own.find("bias") != *plain.node.find("bias"))
        return false;
    }
  }
  return true;
}

// Whether the model's ids are those of its tokenizer: classifiers with one that has no special ids
// count from 1, and 0 is padding.
bool has_ids_of_tokenizer(const LoadedModel& loaded) {
  return loaded.tokenizer != nullptr &&
         loaded.tokenizer->vocabulary_size() == loaded.model->vocabulary();
}

// The name of a class, as the run's data have it; "LABEL_1" where they have none.
std::string class_name(const LoadedModel& loaded, int64_t index) {
  const auto i = static_cast<size_t>(index);
  const bool named = loaded.data && i < loaded.data->classes.size();
  return named ? loaded.data->classes[i] : concat("LABEL_", index);
}

// What Hugging Face's library makes of the files: a classifier of these labels, a masked language
// model, or a trunk.
void add_architecture(JsonValue& config, const PretrainedFamily& family, bool head,
                      const LoadedModel& loaded) {
  const auto& entries = loaded.model->parameters().entries();
  const auto classes = std::find_if(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.name == "head.classes.weight";
  });
  const bool classifier = head && classes != entries.end();
  const bool masked = head && std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
                        return entry.name == "head.dense.weight";
                      });
  config.set("architectures", JsonValue::array().push(classifier ? family.classifier
                                                      : masked   ? family.masked
                                                                 : family.architecture));
  if (!classifier) return;
  JsonValue labels = JsonValue::object(), ids = JsonValue::object();
  for (int64_t i = 0; i < classes->shape[0]; ++i) {
    const std::string name = class_name(loaded, i);
    labels.append(concat(i), name);
    ids.append(name, i);
  }
  config.set("id2label", std::move(labels)).set("label2id", std::move(ids));
  // By it, decoders find the last token of a row.
  if (config.find("pad_token_id") == nullptr) {
    const bool own = has_ids_of_tokenizer(loaded);
    config.set("pad_token_id", std::max(own ? loaded.tokenizer->special_ids().pad : 0, 0));
  }
}

// Copies a parameter of ours to its place in a tensor of theirs.
void put(const Tensor& own, const WeightRule& rule, const Tensor& theirs) {
  const Shape matrix = matrix_of(own.shape(), rule);
  const int64_t out = matrix[0], in = matrix.elements() / out, all = out * rule.parts;
  const bool transposed = rule.transposed && matrix.rank() == 2;
  const float* from = own.data<float>();
  float* to = theirs.data<float>();
  for (int64_t o = 0; o < out; ++o) {
    const int64_t row = rule.part * out + o;
    for (int64_t i = 0; i < in; ++i) {
      to[transposed ? i * all + row : row * in + i] = from[o * in + i];
    }
  }
}

}  // namespace

std::vector<std::string> export_model(const LoadedModel& loaded, const std::string& folder) {
  std::string reasons;
  const PretrainedFamily* family = nullptr;
  JsonValue config;
  for (const PretrainedFamily& each : pretrained_families()) {
    std::string differs;
    config = config_of(loaded, each, differs);
    family = &each;
    if (differs.empty()) break;
    reasons += concat(reasons.empty() ? "" : "; ", differs);
    family = nullptr;
  }
  require_usage(family != nullptr, Cause{ErrorCode::conflict, "model", loaded.path}, loaded.path,
                " is no model that other programs have: ", reasons);
  const bool softmax = has_attention_of(*family, loaded.recipe.model);
  if (!softmax) {
    config.set("linnet_attention", attention_text(*loaded.recipe.resolved.find("model")));
  }
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> own_names, lines;
  const ParameterSet& parameters = loaded.model->parameters();
  const bool head = head_is_of(*family, parameters);
  add_architecture(config, *family, head, loaded);
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    const Tensor value = parameters.weight_of(entry).to(Device()).to(DType::f32);
    const OwnName name(entry.name);
    const WeightRule* rule = !head && entry.name.starts_with("head.")
                                 ? nullptr
                                 : rule_of(*family, name, loaded.recipe.model.has_gate());
    if (rule == nullptr) {
      own_names.push_back(entry.name);
      tensors["linnet." + entry.name] = value;
      continue;
    }
    const std::string there = (rule->bare ? "" : family->prefix) + name_there(*rule, name);
    Tensor& theirs = tensors[there];
    if (!theirs.defined()) theirs = Tensor::zeros(shape_there(entry.shape, *rule));
    put(value, *rule, theirs);
  }
  for (const ParameterSet::Buffer& buffer : parameters.buffers()) {
    own_names.push_back(buffer.name);
    tensors["linnet." + buffer.name] = buffer.variable.value().to(Device());
  }
  std::map<std::string, std::string> files;
  if (has_ids_of_tokenizer(loaded)) files = loaded.tokenizer->published_files();
  files["config.json"] = config.dump(2) + "\n";
  const std::string weights = join_path(folder, "model.safetensors");
  create_directories(folder);
  for (const auto& [name, text] : files) {
    const std::string path = join_path(folder, name);
    require_usage(!exists(path), Cause{ErrorCode::conflict, "--to", path}, path,
                  " exists; name a folder without a model");
  }
  require_usage(!exists(weights), Cause{ErrorCode::conflict, "--to", weights}, weights,
                " exists; name a folder without a model");
  for (const auto& [name, text] : files) write_file_atomically(join_path(folder, name), text);
  write_safetensors(weights, tensors, {{"format", "pt"}});
  lines.push_back(concat("wrote ", folder, ": a ", family->name, " of ", tensors.size(),
                         " tensors, from ", loaded.path));
  if (!softmax) {
    lines.push_back(concat("its attention is ", config.at("linnet_attention").text(),
                           ", which a reader has to compute instead of plain softmax"));
  }
  if (!own_names.empty()) {
    lines.push_back(concat("without a place in that family, and written behind 'linnet.': ",
                           names_of_layers(own_names)));
  }
  if (files.size() == 1) {
    lines.push_back("no files of a tokenizer: other programs have none of this kind");
  }
  return lines;
}

}  // namespace linnet
