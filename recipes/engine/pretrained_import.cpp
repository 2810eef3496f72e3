#include "recipes/engine/pretrained_import.h"

#include <algorithm>

#include "core/files.h"
#include "recipes/engine/pretrained.h"

namespace linnet {
namespace {

std::string value_of(const PretrainedConfig& config, const char* key) {
  const auto found = std::find_if(config.keys.begin(), config.keys.end(),
                                  [key](const RecipeKey& each) { return each.key == key; });
  return found == config.keys.end() ? "0" : found->value;
}

// As a recipe's name has to be.
std::string name_of_folder(const std::string& folder) {
  std::string name = file_name(folder);
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '-') c = '_';
  }
  return name.empty() ? "pretrained" : name;
}

std::string model_section(const PretrainedConfig& config, bool classifier) {
  std::string text = "model:\n";
  const auto add = [&](const RecipeKey& each) {
    text +=
        concat("  ", each.key.substr(std::string_view("model.").size()), ": ", each.value, "\n");
  };
  for (const RecipeKey& each : config.keys) add(each);
  for (const RecipeKey& each : config.rates) add(each);
  if (classifier) text += "  head: pooler\n";
  return text + concat("  attention: ", config.family->attention,
                       "  # any other mechanism begins with the same projections\n");
}

}  // namespace

std::string import_recipe(const std::string& folder) {
  const PretrainedConfig config = load_pretrained_config(folder);
  const std::string family = config.family->name, quoted = JsonValue(folder).dump();
  const bool classifier = value_of(config, "model.kind") != "decoder";
  const int64_t positions = std::stoll(value_of(config, "model.max_positions")) -
                            std::stoll(value_of(config, "model.position_offset"));
  const int64_t usual = classifier ? 128 : 1024;
  const int64_t context = positions > 0 ? std::min(positions, usual) : usual;
  std::string tokenizer = tokenizer_section(folder, *config.family);
  const bool known = !tokenizer.empty();
  if (!known)
    tokenizer = family == "bert" ? "{kind: wordpiece, path: vocab.txt}"
                : family == "t5" ? "{kind: tokenizer_json, path: tokenizer.json}"
                                 : concat("{kind: ", family, ", path: DIR}");
  std::string text =
      concat("# Fine-tuning of a pretrained ", family, ", written by 'linnet model import'.\n",
             classifier ? "# data.path: a table with the columns `text` and `label`.\n"
                        : "# data.path: a folder of text files.\n");
  if (!known) text += "# The folder has no tokenizer that linnet reads: name one.\n";
  text += concat("name: ", name_of_folder(folder), "\nseed: 1\n", "init: {from: ", quoted,
                 ", map: ", family, "}\n");
  if (classifier) {
    text +=
        concat("data:\n  kind: tsv\n  path: rows.tsv\n  text: text\n  label: label\n  tokenizer: ",
               tokenizer, "\n  lengths: like\n  context: ", context, "\n");
  } else {
    text += concat("data:\n  kind: text\n  path: texts\n  tokenizer: ", tokenizer,
                   "\n  context: ", context, "\n");
  }
  text += model_section(config, classifier);
  text += concat(
      "optim:\n  kind: adamw\n  lr: 2.0e-5\n  weight_decay: 0.01\n"
      "  schedule: {kind: linear, warmup_steps: 100}\n  clip_norm: 1.0\n",
      classifier ? "train: {max_steps: 2000, examples_per_update: 32, micro_batch: 32}\n"
                 : concat("train: {max_steps: 2000, tokens_per_update: ", 16 * context,
                          ", micro_batch: 4}\n"),
      classifier ? "evaluate: {every_steps: 500, batch: 32}\n"
                   "checkpoint: {every_steps: 500, keep: 1, best: accuracy}\n"
                 : "evaluate: {every_steps: 500, batch: 4}\n"
                   "checkpoint: {every_steps: 500, keep: 1}\n");
  return text;
}

}  // namespace linnet
