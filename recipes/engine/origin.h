// What a run began from, where that was the checkpoint of another or a pretrained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/json.h"
#include "recipes/engine/checkpoint_files.h"

namespace linnet {

// The file of a checkpoint that holds averaged weights, where it has them.
inline constexpr const char* kAveragedWeights = "average.h5";

// What a run began from. Part of its checkpoints' metadata and of its environment.json.
struct Origin {
  std::string path;   // of the checkpoint or folder, absolute
  int64_t step = 0;   // of the checkpoint
  std::string state;  // init.state: "weights" or "all"
  std::string file;   // there, that held the weights
  std::string hash;   // XXH3-128 of that file, as in the checkpoint's manifest
  std::string map;    // init.map; "" for a checkpoint of linnet
  // Whether the run of the checkpoint, and those before it, kept a section `published` in their
  // recipes: a smaller first stage than the paper's has none. True where nothing else is known.
  bool published = true;
  // "PATH (step 100, weights only)".
  std::string text() const;
};
JsonValue to_json(const Origin& origin);
Origin origin_from(const JsonValue& json);
// Empty for the checkpoint of a run that began with fresh weights.
std::optional<Origin> origin_of(const Checkpoint& checkpoint);

}  // namespace linnet
