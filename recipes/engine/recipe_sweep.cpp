// The points of a `sweep` section.
#include <set>

#include "recipes/engine/recipe.h"

namespace linnet {
namespace {

constexpr size_t kMaxPoints = 1000;

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

// One value of the sweep with what a point shows of it.
struct Choice {
  std::string label;
  Override change;
};

// The values of one path; equal labels within it get their number appended.
std::vector<Choice> choices_of(const ConfigEntry& entry) {
  if (!entry.value.is_sequence() || entry.value.items().empty()) {
    throw located_error(entry.value.location(),
                        Cause{ErrorCode::wrong_type, concat("sweep.", entry.key)}, "'sweep.",
                        entry.key, "' must be a list of values, found ",
                        entry.value.is_sequence() ? "an empty list" : entry.value.found());
  }
  std::vector<std::string> labels;
  std::multiset<std::string> seen;
  for (const ConfigNode& value : entry.value.items()) {
    labels.push_back(value_label(value, labels.size()));
    seen.insert(labels.back());
  }
  const std::string last_key = entry.key.substr(entry.key.rfind('.') + 1);
  std::vector<Choice> choices;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string number = seen.count(labels[i]) > 1 ? concat("#", i + 1) : "";
    const ConfigNode& value = entry.value.items()[i];
    choices.push_back({concat(last_key, "=", labels[i], number),
                       make_override(entry.key, value, value.location().text() + ": sweep")});
  }
  return choices;
}

}  // namespace

std::vector<SweepPoint> sweep_points(const ConfigNode& sweep) {
  std::vector<SweepPoint> points(1);
  for (const ConfigEntry& entry : sweep.entries()) {
    const std::vector<Choice> choices = choices_of(entry);
    if (points.size() * choices.size() > kMaxPoints) {
      throw located_error(sweep.location(), Cause{ErrorCode::out_of_range, "sweep"},
                          "'sweep' has more than ", kMaxPoints, " combinations");
    }
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points) {
      for (const Choice& choice : choices) {
        SweepPoint next = point;
        next.label += (next.label.empty() ? "" : ",") + choice.label;
        next.overrides.push_back(choice.change);
        longer.push_back(std::move(next));
      }
    }
    points = std::move(longer);
  }
  std::set<std::string> labels;
  for (const SweepPoint& point : points) {
    if (labels.insert(point.label).second) continue;
    throw located_error(sweep.location(), Cause{ErrorCode::repeated, "sweep"},
                        "two points of 'sweep' are both called ", point.label);
  }
  return points;
}

}  // namespace linnet
