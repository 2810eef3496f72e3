#include "recipes/engine/sweep_axis.h"

#include <algorithm>
#include <set>

#include "recipes/engine/recipe_name.h"

namespace linnet {
namespace {

constexpr const char* kLabel = "label";

bool is_labelled(const ConfigNode& value) {
  return value.is_map() && value.contains(kLabel);
}

bool is_labelled_axis(const ConfigNode& values) {
  return values.is_sequence() && std::any_of(values.items().begin(), values.items().end(),
                                             [](const auto& value) { return is_labelled(value); });
}

// A section's name or kind; nothing when it has none.
std::string name_label(const ConfigNode& value) {
  for (const char* key : {"name", "kind"}) {
    const ConfigNode* node = value.is_map() ? value.find(key) : nullptr;
    if (node != nullptr && node->is_scalar()) return node->raw();
  }
  return "";
}

// A value in a label: a scalar itself, a section by its name or kind, a list of sections
// by all their names, otherwise its number in the list.
std::string value_label(const ConfigNode& value, size_t index) {
  if (value.is_scalar()) return value.raw();
  std::string label = name_label(value);
  if (value.is_sequence()) {
    for (const ConfigNode& item : value.items()) {
      const std::string name = name_label(item);
      if (name.empty()) return std::to_string(index + 1);
      label += (label.empty() ? "" : "+") + name;
    }
  }
  return label.empty() ? std::to_string(index + 1) : label;
}

Override assignment(const std::string& path, const ConfigNode& value) {
  std::string place = value.location().text();
  if (!place.ends_with(": sweep")) place += ": sweep";  // the command line says it
  return make_override(path, value, place);
}

// The given label of a value.
std::string label_of(const ConfigNode& value, const std::string& axis) {
  const std::string key = concat("sweep.", axis);
  const Cause cause{ErrorCode::wrong_type, key};
  if (!is_labelled(value)) {
    throw located_error(value.location(), cause, "'sweep.", axis, "' has values with a '", kLabel,
                        "', so each needs one: {label: ..., key.path: value, ...}");
  }
  const ConfigNode& label = *value.find(kLabel);
  const bool usable = label.is_scalar() && is_plain_name(folder_of_point(label.raw())) &&
                      label.raw().find_first_of(",=") == std::string::npos;
  if (!usable) {
    throw located_error(
        label.location(), cause, "a label of 'sweep.", axis,
        "' is part of a folder's name: a text without comma, equals sign or control "
        "characters, found ",
        label.found());
  }
  return label.raw();
}

std::vector<SweepChoice> labelled_choices(const ConfigEntry& axis) {
  const std::string key = concat("sweep.", axis.key);
  const Cause cause{ErrorCode::conflict, key};
  if (axis.key.find('.') != std::string::npos) {
    throw located_error(axis.key_location, cause, "'sweep.", axis.key,
                        "' has labelled values, which name their paths themselves: call it by one "
                        "word, such as mechanism");
  }
  std::vector<SweepChoice> choices;
  std::set<std::string> seen;
  for (const ConfigNode& value : axis.value.items()) {
    const std::string label = label_of(value, axis.key);
    if (!seen.insert(label).second) {
      throw located_error(value.find(kLabel)->location(), Cause{ErrorCode::repeated, key},
                          "two values of 'sweep.", axis.key, "' are both called '", label, "'");
    }
    SweepChoice choice{concat(axis.key, "=", label), label, {}};
    std::set<std::string> assigned;
    for (const ConfigEntry& entry : value.entries()) {
      if (entry.key == kLabel) continue;
      choice.changes.push_back(assignment(entry.key, entry.value));
      if (const std::string* other = path_meeting(entry.key, assigned)) {
        const bool longer = entry.key.size() > other->size();
        throw located_error(entry.key_location, Cause{ErrorCode::repeated, key}, "the value '",
                            label, "' of 'sweep.", axis.key, "' sets ", longer ? entry.key : *other,
                            " twice, alone and as a part of ", longer ? *other : entry.key,
                            "; keep one");
      }
      assigned.insert(entry.key);
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

// Whether a change assigns the value at the dotted path `swept`, alone or with a section around it.
bool replaces(const Override& change, const std::string& swept) {
  std::string path = change.text;
  const std::string& last = change.path.back();
  // A new name or kind resets the section around it.
  if ((last == "name" || last == "kind") && path == concat(swept, ".", last)) path = swept;
  return swept == path || swept.starts_with(path + ".");
}

}  // namespace

std::vector<SweepChoice> choices_of(const ConfigEntry& axis) {
  if (!axis.value.is_sequence() || axis.value.items().empty()) {
    throw located_error(axis.value.location(),
                        Cause{ErrorCode::wrong_type, concat("sweep.", axis.key)}, "'sweep.",
                        axis.key, "' must be a list of values, found ",
                        axis.value.is_sequence() ? "an empty list" : axis.value.found());
  }
  if (is_labelled_axis(axis.value)) return labelled_choices(axis);
  std::vector<std::string> labels;
  std::multiset<std::string> seen;
  for (const ConfigNode& value : axis.value.items()) {
    labels.push_back(value_label(value, labels.size()));
    seen.insert(labels.back());
  }
  const std::string last_key = axis.key.substr(axis.key.rfind('.') + 1);
  std::vector<SweepChoice> choices;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string number = seen.count(labels[i]) > 1 ? concat("#", i + 1) : "";
    choices.push_back({concat(last_key, "=", labels[i], number),
                       "",
                       {assignment(axis.key, axis.value.items()[i])}});
  }
  return choices;
}

std::vector<std::string> paths_of(const ConfigEntry& axis) {
  if (!is_labelled_axis(axis.value)) return {axis.key};
  std::vector<std::string> paths;
  for (const ConfigNode& value : axis.value.items()) {
    if (!value.is_map()) continue;
    for (const std::string& key : value.keys()) {
      if (key != kLabel) paths.push_back(key);
    }
  }
  return paths;
}

const std::string* path_meeting(const std::string& path, const std::set<std::string>& assigned) {
  const auto inside = assigned.lower_bound(path + ".");
  if (inside != assigned.end() && inside->starts_with(path + ".")) return &*inside;
  for (std::string around = path;; around.resize(around.rfind('.'))) {
    const auto found = assigned.find(around);
    if (found != assigned.end()) return &*found;
    if (around.find('.') == std::string::npos) return nullptr;
  }
}

bool leave_unassigned(const Override& change, ConfigEntry& axis) {
  if (!is_labelled_axis(axis.value)) return !replaces(change, axis.key);
  std::vector<ConfigNode> values = axis.value.items();
  bool left = false, touched = false;
  for (ConfigNode& value : values) {
    if (!value.is_map()) return true;  // refused when the sweep is read
    for (const std::string& key : value.keys()) {
      if (key != kLabel && replaces(change, key)) touched = value.erase(key);
    }
    left = left || value.keys().size() > 1;
  }
  if (!touched) return true;
  ConfigNode shorter = ConfigNode::sequence(std::move(values));
  shorter.set_location(axis.value.location());
  axis.value = std::move(shorter);
  return left;
}

}  // namespace linnet
