#include "recipes/engine/cudnn_check.h"

#include <algorithm>
#include <functional>
#include <set>

#include "attention/layer_choice.h"
#include "data/registry.h"
#include "layers/attention_sections.h"

namespace linnet {
namespace {

using Refuse = std::function<void(const std::string& what)>;

// A section of the model, with the parameters of its mechanisms filled in.
void check_section(const std::string& key, const ConfigNode& resolved, int64_t layers,
                   double model_dropout, const Refuse& refuse) {
  for (const LayerChoice& choice : layer_choices(resolved, layers)) {
    const ConfigNode& mechanism = choice.attention;
    const std::string name = mechanism.find("name")->raw();
    if (name != "softmax") {
      refuse(concat("trains softmax attention alone, and '", key, "' has ", name,
                    "; use 'backend: auto'"));
      continue;
    }
    const std::string bias = mechanism.find("bias")->raw();
    if (bias != "none") {
      refuse(concat("adds no bias to logits, and '", key, "' has 'bias: ", bias,
                    "'; set 'bias: none', or 'backend: auto'"));
    }
    const ConfigNode* own = mechanism.find("dropout");
    const bool has_own = own != nullptr && !own->is_null();
    if ((has_own ? read_double(*own, "dropout") : model_dropout) > 0) {
      refuse(
          concat("drops no weights of attention; set ",
                 has_own ? concat("'dropout: 0' in 'model.", key) : "'model.attention_dropout: 0",
                 "', or 'backend: auto'"));
    }
  }
}

void check_heads(const ModelConfig& model, const Refuse& refuse) {
  constexpr int64_t kWidest = 128, kMultiple = 8;  // of cuDNN's kernels
  const int64_t width = model.width / model.heads;
  if (width > kWidest || width % kMultiple != 0) {
    refuse(concat("needs heads of ", kMultiple, " to ", kWidest, " channels, in multiples of ",
                  kMultiple, ", and 'model.width: ", model.width, "' over 'model.heads: ",
                  model.heads, "' makes ", width, "; change one, or use 'backend: auto'"));
  }
  if (model.kv_heads > 0 && model.kv_heads < model.heads) {
    refuse(concat("needs keys for every head, and 'model.kv_heads: ", model.kv_heads,
                  "' has them shared; leave it out, or use 'backend: auto'"));
  }
}

}  // namespace

void check_cudnn(const Recipe& recipe, const ModelAttention& attention, const ConfigNode& train,
                 ConfigErrors& errors) {
  std::set<std::string> said;
  const Refuse refuse = [&](const std::string& what) {
    if (!said.insert(what).second) return;
    errors.add(train.location_of("backend"), ErrorCode::conflict, "train.backend",
               concat("'train.backend: cudnn' ", what));
  };
  for (const AttentionSection& section : attention_sections(recipe.model)) {
    if (section.form == Form::cross) {
      refuse(concat("has no attention to an encoder, as 'model.kind: ", recipe.model.kind,
                    "' needs it; use 'backend: auto'"));
    }
    const auto own = std::find_if(attention.sections.begin(), attention.sections.end(),
                                  [&](const auto& each) { return each.first == section.key; });
    if (section.shared || own == attention.sections.end()) continue;
    check_section(section.key, own->second, section.layers, recipe.model.attention_dropout, refuse);
  }
  check_heads(recipe.model, refuse);
  const TaskKind task = recipe.task ? recipe.task->kind : default_task(recipe.data);
  if (task == TaskKind::classification) {
    refuse("reads no rows with padding, as classifiers have them; use 'backend: auto'");
  }
  if (task == TaskKind::language_model && find_data_kind(recipe.data.kind).texts() != nullptr &&
      !recipe.data.crosses_documents()) {
    refuse(
        "reads no rows of several documents; set 'data.cross_documents: true', or "
        "'backend: auto'");
  }
}

}  // namespace linnet
