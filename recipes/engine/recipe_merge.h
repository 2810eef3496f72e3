// How recipes combine: `extends:`, and overrides such as model.attention.rank=32.
#pragma once

#include <string>
#include <vector>

#include "core/config_node.h"

namespace linnet {

// `over` on top of `base`. Sections merge key by key; single values, lists and null replace. A
// section whose `name` or `kind` changes is replaced whole, since the keys of the old kind mean
// nothing to the new one (the top of a recipe always merges). A section of `base` that gives no
// kind merges with one of any kind, but `data` with a path or lists of files is of the default
// kind. A `data.path` for a kind that generates leaves the generator's keys of `base` out, here and
// among overrides.
ConfigNode merge_recipes(const ConfigNode& base, const ConfigNode& over);

// One assignment "path=value" of the command line or of a sweep.
struct Override {
  std::vector<std::string> path;
  ConfigNode value;
  std::string text;  // the path as it was given
};

// Reads "model.attention.rank=32". Values that begin with { [ " or ' are YAML; others are taken
// literally, white space around them removed. Every place in the result is "<origin>: <path>".
// Throws UsageError for anything that is not path=value.
Override parse_override(const std::string& argument, const std::string& origin = "command line");
Override make_override(const std::string& path, ConfigNode value, const std::string& origin);

// Assigns each value at its path in `root`, making sections on the way. Order does not matter:
// shorter paths go first and `name` or `kind` before its neighbours, and as with merging a new
// `name` or `kind` removes the keys of the old one, which is the default where none is given.
// Throws UsageError when a path is given twice or leads through something that is not a section.
void apply_overrides(ConfigNode& root, std::vector<Override> overrides);

// Notes to the user about the sections of `root` that a file or an override reset: one sentence for
// each, naming the keys that are not set any more.
std::vector<std::string> restart_notes(const ConfigNode& root);

}  // namespace linnet
