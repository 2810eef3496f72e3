// The points of a `sweep` section.
#include <algorithm>
#include <set>
#include <sstream>

#include "core/log.h"
#include "core/suggest.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/recipe_file.h"
#include "recipes/engine/recipe_name.h"
#include "recipes/engine/sweep_axis.h"
#include "recipes/engine/without_effect.h"

namespace linnet {
namespace {

constexpr size_t kMaxPoints = 1000;
constexpr size_t kMaxValues = 400000;  // of all points together: some 100 MB

// `changed` as leave_published has it.
void note_left_published(const std::string& changed) {
  if (changed.empty()) return;
  log_info(changed, " is not the recipe's: its runs are compared with no published numbers");
}

size_t count_values(const ConfigNode& node) {
  size_t count = 1;
  if (node.is_sequence()) {
    for (const ConfigNode& item : node.items()) count += count_values(item);
  } else if (node.is_map()) {
    for (const ConfigEntry& entry : node.entries()) count += count_values(entry.value);
  }
  return count;
}

// Each point has a copy of what it is made of, `values` of all together.
void require_room(size_t points, size_t values, const ConfigNode& sweep) {
  if (values <= kMaxValues) return;
  throw located_error(sweep.location(), Cause{ErrorCode::out_of_range, "sweep"}, "'sweep' has ",
                      points, " combinations, whose recipes hold ", values,
                      " values together, more than ", kMaxValues,
                      "; sweep fewer values, or take long lists out of the recipe");
}

// Two axes cannot assign one path, nor a part of what the other does. Adds those of this one to
// what is `assigned`.
void require_new_paths(const std::vector<SweepChoice>& choices, std::set<std::string>& assigned) {
  std::set<std::string> own;
  for (const SweepChoice& choice : choices) {
    for (const Override& change : choice.changes) {
      own.insert(change.text);
      const std::string* other = path_meeting(change.text, assigned);
      if (other == nullptr) continue;
      const bool longer = change.text.size() > other->size();
      const std::string part = *other == change.text ? ""
                                                     : concat(", one of them as a part of ",
                                                              longer ? *other : change.text);
      throw located_error(change.value.location(), Cause{ErrorCode::repeated, "sweep"},
                          "two axes of 'sweep' assign ", longer ? change.text : *other, part,
                          "; keep one");
    }
  }
  assigned.merge(own);
}

constexpr size_t kShownLabels = 40;

std::string labels_of(const std::vector<RecipePoint>& points) {
  std::string text;
  for (size_t i = 0; i < std::min(points.size(), kShownLabels); ++i) {
    text += concat(i == 0 ? "'" : ", '", points[i].label, "'");
  }
  if (points.size() > kShownLabels) {
    text += concat(" and ", points.size() - kShownLabels, " more");
  }
  return text;
}

// "lr=0.1", "0.1", "width=8", "8" of the label "lr=0.1,width=8".
std::vector<std::string> parts_of(const std::string& label) {
  std::vector<std::string> parts;
  std::istringstream text(label);
  for (std::string part; std::getline(text, part, ',');) {
    parts.push_back(part);
    parts.push_back(part.substr(part.find('=') + 1));
  }
  return parts;
}

// The points that have the value, alone or with its key, that is nearest to `word`.
std::vector<RecipePoint> points_with(const std::string& word,
                                     const std::vector<RecipePoint>& points) {
  constexpr size_t kShortest = 3;  // a shorter value is near to any other
  std::vector<std::string> parts;
  for (const RecipePoint& point : points) {
    for (std::string& part : parts_of(point.label)) {
      if (part.size() >= kShortest) parts.push_back(std::move(part));
    }
  }
  const std::vector<std::string> nearest = nearest_words(word, parts);
  std::vector<RecipePoint> found;
  for (const RecipePoint& point : points) {
    const std::vector<std::string> own = parts_of(point.label);
    if (!nearest.empty() && std::count(own.begin(), own.end(), nearest.front()) > 0) {
      found.push_back(point);
    }
  }
  return found;
}

// A run may begin from the run of another sweep at the same point: `{point}` in init.from is the
// folder of that point.
void name_initial_run(ConfigNode& node, const std::string& label) {
  ConfigNode* init = node.find("init");
  ConfigNode* from = init != nullptr && init->is_map() ? init->find("from") : nullptr;
  if (from == nullptr || !from->is_scalar()) return;
  constexpr std::string_view kPoint = "{point}";
  std::string path = from->raw();
  const size_t at = path.find(kPoint);
  if (at == std::string::npos) return;
  path.replace(at, kPoint.size(), folder_of_point(label));
  ConfigNode named = ConfigNode::scalar(path);
  named.set_location(from->location());
  *from = std::move(named);
}

// Where the sweep has that label.
Location place_of_label(const ConfigNode& sweep, const std::string& name) {
  for (const ConfigEntry& axis : sweep.entries()) {
    for (const ConfigNode& value : axis.value.items()) {
      const ConfigNode* label = value.is_map() ? value.find("label") : nullptr;
      if (label != nullptr && label->is_scalar() && label->raw() == name) return label->location();
    }
  }
  return sweep.location();
}

// The rows of a published table that a point measures are those of its name.
void name_published_model(ConfigNode& node, const std::string& name, const ConfigNode& sweep) {
  ConfigNode* published = node.find("published");
  if (name.empty() || published == nullptr || !published->is_map()) return;
  if (published->contains("model")) return;
  ConfigNode model = ConfigNode::scalar(name);
  model.set_location(place_of_label(sweep, name));
  published->set("model", std::move(model), published->location());
}

// What the command line makes the axes of its own or other values of them assign.
std::vector<Override> swept_by_overrides(const ConfigNode& file,
                                         const std::vector<std::string>& overrides) {
  std::vector<Override> sweeps;
  for (const std::string& argument : overrides) {
    Override change = parse_override(argument);
    if (change.path[0] == "sweep") sweeps.push_back(std::move(change));
  }
  if (sweeps.empty()) return {};
  ConfigNode changed = file;
  apply_overrides(changed, std::move(sweeps));
  const ConfigNode* before = file.find("sweep");
  const ConfigNode* sweep = changed.find("sweep");
  std::vector<Override> assigned;
  if (sweep == nullptr || !sweep->is_map()) return assigned;
  for (const ConfigEntry& axis : sweep->entries()) {
    const ConfigNode* same =
        before != nullptr && before->is_map() ? before->find(axis.key) : nullptr;
    if (same != nullptr && *same == axis.value) continue;
    for (SweepChoice& choice : choices_of(axis)) {
      for (Override& change : choice.changes) assigned.push_back(std::move(change));
    }
  }
  return assigned;
}

// What the command line changes, apart from the sweep.
std::vector<Override> changes_of(const std::vector<std::string>& overrides) {
  std::vector<Override> changes;
  for (const std::string& argument : overrides) {
    Override change = parse_override(argument);
    if (change.path[0] != "sweep") changes.push_back(std::move(change));
  }
  return changes;
}

// Both: in what the runs depart from those of the file.
std::vector<Override> departures_from(const ConfigNode& file,
                                      const std::vector<std::string>& overrides) {
  std::vector<Override> departures = swept_by_overrides(file, overrides);
  const std::vector<Override> changes = changes_of(overrides);
  departures.insert(departures.end(), changes.begin(), changes.end());
  return departures;
}

}  // namespace

std::vector<SweepPoint> sweep_points(const ConfigNode& sweep) {
  if (!sweep.is_map() && !sweep.is_null()) {
    throw located_error(sweep.location(), Cause{ErrorCode::wrong_type, "sweep"},
                        "expected a section of 'path.of.key: [value, ...]' lines, found ",
                        sweep.found());
  }
  std::vector<SweepPoint> points(1);
  size_t held = 0;  // values of all points
  int64_t labelled = 0;
  std::set<std::string> assigned;
  for (const ConfigEntry& entry : sweep.entries()) {
    const std::vector<SweepChoice> choices = choices_of(entry);
    require_new_paths(choices, assigned);
    if (points.size() * choices.size() > kMaxPoints) {
      throw located_error(sweep.location(), Cause{ErrorCode::out_of_range, "sweep"},
                          "'sweep' has more than ", kMaxPoints, " combinations");
    }
    held = held * choices.size() + points.size() * count_values(entry.value);
    require_room(points.size() * choices.size(), held, sweep);
    if (!choices.front().name.empty()) ++labelled;
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points) {
      for (const SweepChoice& choice : choices) {
        SweepPoint next = point;
        next.label += (next.label.empty() ? "" : ",") + choice.label;
        if (!choice.name.empty()) next.name = labelled == 1 ? choice.name : "";
        next.overrides.insert(next.overrides.end(), choice.changes.begin(), choice.changes.end());
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

ConfigNode load_swept_node(const std::string& path, const std::vector<std::string>& overrides) {
  ConfigNode whole = load_recipe_node(path, overrides);
  ConfigNode* sweep = whole.find("sweep");
  if (sweep == nullptr || !sweep->is_map()) return whole;
  for (const std::string& argument : overrides) {
    const Override change = parse_override(argument);
    if (change.path[0] == "sweep") continue;  // it is in `whole`
    for (ConfigEntry axis : std::vector<ConfigEntry>(sweep->entries())) {
      if (leave_unassigned(change, axis)) {
        sweep->set(axis.key, std::move(axis.value), axis.key_location);
      } else {
        sweep->erase(axis.key);
      }
    }
  }
  if (sweep->keys().empty()) whole.erase("sweep");
  return whole;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  ConfigNode node = load_swept_node(path, overrides);
  if (!overrides.empty()) {
    note_left_published(
        leave_published(node, departures_from(read_recipe_file(path).node, overrides)));
  }
  Recipe recipe = parse_recipe(node);
  recipe.path = path;
  for (const std::string& note : restart_notes(node)) log_info(note);
  return recipe;
}

std::vector<RecipePoint> load_recipe_points(const std::string& path,
                                            const std::vector<std::string>& overrides) {
  ConfigNode whole = load_swept_node(path, overrides);
  const ConfigNode* left = whole.find("sweep");
  const ConfigNode sweep = left == nullptr ? ConfigNode() : *left;
  const std::vector<Override> changes = changes_of(overrides);
  whole.erase("sweep");
  const std::vector<SweepPoint> swept = sweep_points(sweep);
  if (swept.front().label.empty()) {
    name_initial_run(whole, "");
    note_left_published(leave_published(whole, changes));
    return {{"", std::move(whole)}};
  }
  ConfigNode file = read_recipe_file(path).node;
  const std::vector<Override> departures = departures_from(file, overrides);
  file.erase("sweep");
  for (const ConfigNode* copied : {&file, &whole}) {
    require_room(swept.size(), swept.size() * count_values(*copied), sweep);
  }
  std::vector<RecipePoint> points;
  std::string changed;
  for (const SweepPoint& point : swept) {
    std::vector<Override> all = point.overrides;
    all.insert(all.end(), changes.begin(), changes.end());
    points.push_back({point.label, file});
    apply_overrides(points.back().node, std::move(all));
    name_published_model(points.back().node, point.name, sweep);
    require_plain_name(points.back().node);
    const std::string left_by = leave_published(points.back().node, departures);
    if (!left_by.empty()) changed = left_by;
  }
  for (RecipePoint& point : points) name_initial_run(point.node, point.label);
  note_left_published(changed);
  return points;
}

RecipePoint load_recipe_point(const std::string& path, const std::vector<std::string>& overrides,
                              const std::string& label) {
  std::vector<RecipePoint> points = load_recipe_points(path, overrides);
  const bool swept = !points.front().label.empty();
  if (label.empty()) {
    require_usage(!swept, Cause{ErrorCode::conflict, "sweep", path}, path, " is a sweep of ",
                  points.size(), points.size() == 1 ? " point" : " points",
                  ", and this is one run: choose a point with --point LABEL, or give what it "
                  "sweeps as key=value, or sweep=null for the recipe itself; the labels: ",
                  labels_of(points));
    return std::move(points.front());
  }
  require_usage(swept, Cause{ErrorCode::conflict, "--point", path}, "--point ", label, ": ", path,
                " has no sweep, or key=value gives all that it sweeps; leave --point out");
  std::vector<std::string> labels;
  std::vector<RecipePoint> longer;  // the points that a label cut short could mean
  for (RecipePoint& point : points) {
    if (point.label == label) return std::move(point);
    labels.push_back(point.label);
    if (point.label.starts_with(label)) longer.push_back(point);
  }
  const std::vector<std::string> near = longer.size() == 1
                                            ? std::vector<std::string>{longer.front().label}
                                            : nearest_words(label, labels);
  require_usage(longer.size() < 2, Cause{ErrorCode::unknown_name, "--point", path}, "the sweep of ",
                path, " has no point '", label, "'; these begin with it: ", labels_of(longer));
  const std::vector<RecipePoint> alike = points_with(label, points);
  const std::string meant = !near.empty()       ? concat("did you mean '", near.front(), "'?")
                            : alike.size() == 1 ? concat("did you mean ", labels_of(alike), "?")
                            : alike.empty()     ? concat("its points: ", labels_of(points))
                                                : concat("the nearest: ", labels_of(alike));
  throw UsageError({ErrorCode::unknown_name, "--point", path},
                   concat("the sweep of ", path, " has no point '", label, "'; ", meant));
}

}  // namespace linnet
