// Settings of a recipe that change no result of its run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config_node.h"
#include "recipes/engine/recipe_merge.h"

namespace linnet {

// Whether the setting at this dotted path, with all below it, says how a run is called, seeded,
// saved and computed, or where files lie, but nothing of what is trained and scored.
bool is_without_effect(const std::string& path);

// The first setting in which two nodes at the dotted path differ ("" for whole recipes), apart from
// those that are excused, with all below them; "" for none.
std::string difference_apart_from(const ConfigNode& a, const ConfigNode& b, const std::string& path,
                                  const std::function<bool(const std::string&)>& is_excused);

// The same, apart from those without effect.
std::string difference_with_effect(const ConfigNode& a, const ConfigNode& b,
                                   const std::string& path = "");

// A recipe that the command line changed in other settings measures no published row, whatever the
// changes say of its section `published`: takes that out and returns the first of these settings;
// "" where there is none, or no such section.
std::string leave_published(ConfigNode& recipe, const std::vector<Override>& changes);

// The same for `recipe`, which is `own` over the `base` that it extends: `own` changes or sweeps
// other settings, and has no section `published` with a table or a task, or null, of its own.
std::string leave_inherited_published(ConfigNode& recipe, const ConfigNode& base,
                                      const ConfigNode& own);

}  // namespace linnet
