// The `init` section: weights, and more, that a new run takes over from a checkpoint.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "recipes/engine/checkpoint_files.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/origin.h"

namespace linnet {

struct GivenState {
  Checkpoint checkpoint;
  Origin origin;
  std::string which;  // "the best checkpoint of runs/lm", "the best intact" one where the best is
                      // damaged; "" where a checkpoint was named
  bool all = false;   // optimizer and position, too
};

// What to do instead of taking over all, in messages.
inline constexpr const char* kWeightsInstead = "take over the weights only (init.state=weights)";

// Reads the checkpoint that the recipe's `init` names: of a run directory the best one, else the
// newest, as find_checkpoint. Throws UsageError when there is none, when it needs a plugin, and,
// for init.state all, naming the key, when the recipe reads other data, has another optimizer, or
// updates of another size.
GivenState load_given_state(const Recipe& recipe);

// The weights that init.map finds there, by the names of parameters and buffers: the averaged ones,
// which `evaluate` scores, where the run kept an average.
std::map<std::string, Tensor> given_weights(const GivenState& given);

// Throws UsageError naming the first parameters and buffers of the recipe's model that have another
// shape in `weights` or are missing there, and those that the model does not have. The model needs
// no weights.
void require_fitting(const GivenState& given, const std::map<std::string, Tensor>& weights,
                     const Recipe& recipe, const ParameterSet& parameters);

// Throws UsageError when the checkpoint's ids stand for other text than the tokenizer's (null for
// tasks without text).
void require_same_tokenizer(const GivenState& given, const Tokenizer* tokenizer);

}  // namespace linnet
