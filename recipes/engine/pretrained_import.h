// A recipe for a pretrained model.
#pragma once

#include <string>

namespace linnet {

// The text of a recipe that fine-tunes the model in a folder: its config.json as the section
// `model`, its weights as `init`, its tokenizer, and data that the user names. Models with an
// encoder become classifiers of labelled texts, decoders language models. Throws UsageError as
// load_pretrained_config.
std::string import_recipe(const std::string& folder);

}  // namespace linnet
