// The `init` section: weights, and more, that a new run takes over from a checkpoint or a
// pretrained model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "recipes/engine/checkpoint_files.h"
#include "recipes/engine/model_builder.h"
#include "recipes/engine/origin.h"
#include "recipes/engine/pretrained.h"

namespace linnet {

struct GivenState {
  Checkpoint checkpoint;                         // none where `pretrained` is set
  std::shared_ptr<const Pretrained> pretrained;  // null: a checkpoint of linnet
  Origin origin;
  std::string which;  // "the best checkpoint of runs/lm", "the best intact" one where the best is
                      // damaged; "" where a checkpoint was named
  bool all = false;   // optimizer and position, too
  std::string note;   // for the log: what it means for the run's published rows; "" for nothing
};

// What to do instead of taking over all, in messages.
inline constexpr const char* kWeightsInstead = "take over the weights only (init.state=weights)";

// Reads what the recipe's `init` names: of a run directory the best checkpoint, else the newest, as
// find_checkpoint; the folder of a pretrained model. Throws UsageError when there is none, when it
// needs a plugin, for a pretrained model, naming the keys, when the recipe's model is another, and,
// for init.state all, naming the key, when the recipe reads other data, has another optimizer, or
// updates of another size.
GivenState load_given_state(const Recipe& recipe);

// Throws UsageError naming the first parameters and buffers of the recipe's model that have another
// shape there. Those of heads and of attention mechanisms may be missing there or here, unless all
// is taken over; of a checkpoint of linnet no others. Also when the ids there stand for other text
// than the tokenizer's (null for tasks without text). The model needs no weights.
void require_fitting(const GivenState& given, const Recipe& recipe, const Tokenizer* tokenizer,
                     const ParameterSet& parameters);

// After require_fitting: copies the weights into the model; of a checkpoint the averaged ones,
// which `evaluate` scores, where the run kept an average. Returns lines for the log: which
// parameters keep their initial values, and which of those there are not used.
std::vector<std::string> take_weights(const GivenState& given, const ParameterSet& parameters);

}  // namespace linnet
