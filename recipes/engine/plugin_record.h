// Which plugins a model's mechanisms came from: kept in checkpoints, so that one that is missing
// later is named.
#pragma once

#include "core/config.h"
#include "recipes/engine/checkpoint_files.h"

namespace linnet {

// {mechanism: {plugin, hash}} of the mechanisms in a resolved recipe that plugins registered.
JsonValue plugin_record(const ConfigNode& resolved);

// Throws UsageError, naming mechanism and plugin, unless all that the checkpoint records are
// loaded; warns of a plugin that is not the file that it was.
void require_plugins(const Checkpoint& checkpoint);

}  // namespace linnet
