// The `init` section: weights, and more, that a new run takes over from a checkpoint.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "recipes/engine/checkpoint_files.h"
#include "recipes/engine/model_builder.h"

namespace linnet {

// What a run began from. Part of its checkpoints' metadata and of its environment.json.
struct Origin {
  std::string path;   // of the checkpoint, absolute
  int64_t step = 0;   // of the checkpoint
  std::string state;  // init.state: "weights" or "all"
  std::string file;   // of the checkpoint, that held the weights
  std::string hash;   // XXH3-128 of that file, as in the checkpoint's manifest
  // "PATH (step 100, weights only)".
  std::string text() const;
};
JsonValue to_json(const Origin& origin);
Origin origin_from(const JsonValue& json);
// Empty for the checkpoint of a run that began with fresh weights.
std::optional<Origin> origin_of(const Checkpoint& checkpoint);

struct GivenState {
  Checkpoint checkpoint;
  Origin origin;
  std::string which;  // "the best checkpoint of runs/lm"; "" where a checkpoint was named
  bool all = false;   // optimizer and position, too
};

// Reads the checkpoint that the recipe's `init` names: of a run directory the best one, else the
// newest, as find_checkpoint. Throws UsageError when there is none, when it needs a plugin, and,
// for init.state all, naming the key, when the recipe reads other data or has another optimizer.
GivenState load_given_state(const Recipe& recipe);

// The weights that init.map finds there, by the names of parameters and buffers: the averaged ones,
// which `evaluate` scores, where the run kept an average.
std::map<std::string, Tensor> given_weights(const GivenState& given);

// Throws UsageError naming the first parameters and buffers of the recipe's model that have another
// shape in `weights` or are missing there, and those that the model does not have.
void require_fitting(const GivenState& given, const std::map<std::string, Tensor>& weights,
                     const Recipe& recipe, const ParameterSet& parameters);

// Throws UsageError when the checkpoint's ids stand for other text than the tokenizer's (null for
// tasks without text).
void require_same_tokenizer(const GivenState& given, const Tokenizer* tokenizer);

}  // namespace linnet
