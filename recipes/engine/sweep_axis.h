// One axis of a recipe's `sweep`: the values of a dotted path, or labelled values that set several.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/config_node.h"
#include "recipes/engine/recipe_merge.h"

namespace linnet {

// One value of an axis: what a point's label shows of it, and what it assigns.
struct SweepChoice {
  std::string label;  // "lr=0.1"
  std::string name;   // that of a labelled value, "rotary" of "mechanism=rotary"; else ""
  std::vector<Override> changes;
};

// The values of the axis, in order. Where its values are sections with a `label`
//   mechanism: [{label: rotary, model.attention: {name: softmax}, model.positions: rotary}, ...]
// the axis has a name of its own, and the other keys are the paths that a value sets. Otherwise its
// key is the path; equal labels get their number appended. Throws UsageError for other forms, and
// for a value that sets a path twice, alone and with the section around it.
std::vector<SweepChoice> choices_of(const ConfigEntry& axis);

// The paths that the values of an axis assign, of whatever form the axis is.
std::vector<std::string> paths_of(const ConfigEntry& axis);

// A path of `assigned` that is `path`, lies in its section, or has it in its own; nullptr for none.
const std::string* path_meeting(const std::string& path, const std::set<std::string>& assigned);

// Takes what `change` assigns out of the values of the axis. Returns false when nothing is left.
bool leave_unassigned(const Override& change, ConfigEntry& axis);

}  // namespace linnet
