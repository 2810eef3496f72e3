// How recipes combine.
#include "recipes/engine/recipe_merge.h"

#include <algorithm>
#include <unordered_map>

#include "core/config_scalar.h"
#include "core/utf8.h"
#include "core/yaml.h"
#include "data/registry.h"
#include "recipes/engine/recipe.h"

namespace linnet {
namespace {

constexpr size_t kLongestPath = 32;  // elements; a recipe nests far less

bool names_a_kind(const std::string& key) {
  return key == "name" || key == "kind";
}

// Quotes do not make another name.
bool same_name(const ConfigNode& a, const ConfigNode& b) {
  return a.is_scalar() && b.is_scalar() ? a.raw() == b.raw() : a == b;
}

void collect_defaults(const std::vector<FieldSchema>& fields, const std::string& section,
                      std::unordered_map<std::string, std::string>& defaults) {
  for (const FieldSchema& field : fields) {
    const std::string path = key_in(section, field.name);
    if (names_a_kind(field.name) && !field.required) defaults.emplace(path, field.default_text);
    collect_defaults(field.fields, path, defaults);
  }
}

// The kind of a section that gives none, by the path of the key; nullptr where it has to be given.
const std::string* default_kind(const std::string& path) {
  static const auto defaults = [] {
    std::unordered_map<std::string, std::string> found;
    collect_defaults(schema_of<Recipe>().fields, "", found);
    return found;
  }();
  const auto found = defaults.find(path);
  return found == defaults.end() ? nullptr : &found->second;
}

// Whether `after`, the `key` of `section`, is something else than what `base` is.
bool changes_kind(const ConfigNode& base, const std::string& section, const std::string& key,
                  const ConfigNode& after) {
  if (const ConfigNode* before = base.find(key)) return !same_name(*before, after);
  const std::string* implied = default_kind(key_in(section, key));
  return implied != nullptr && after.is_scalar() && after.raw() != *implied;
}

// Data that say where they lie are of a kind, named or not.
bool names_files(const ConfigNode& data) {
  static const ConfigSchema lists = schema_of<FileLists>();
  return data.contains("path") ||
         std::any_of(lists.fields.begin(), lists.fields.end(),
                     [&](const FieldSchema& list) { return data.contains(list.name); });
}

// Whether `over` says that the section is something else than `base`. A base that names no kind is
// often a part that several kinds share, which stays; but files of the default kind are no other
// kind's.
bool changes_kind(const ConfigNode& base, const ConfigNode& over, const std::string& section) {
  for (const char* key : {"name", "kind"}) {
    const ConfigNode* after = over.find(key);
    const bool has_kind = base.contains(key) || (section == "data" && names_files(base));
    if (after != nullptr && has_kind && changes_kind(base, section, key, *after)) return true;
  }
  return false;
}

// Files in the place of generated examples: what says how to generate them goes.
void leave_generator(ConfigNode& data, const ConfigNode* path) {
  const ConfigNode* name = data.is_map() ? data.find("kind") : nullptr;
  if (name == nullptr || !name->is_scalar()) return;
  if (path == nullptr || !path->is_scalar() || path->raw().empty()) return;
  for (const DataKind& kind : data_kinds()) {
    if (kind.name == name->raw() && kind.drop_generator) kind.drop_generator(data);
  }
}

// `section`: the path of both, "" for the top.
ConfigNode merge(const ConfigNode& base, const ConfigNode& over, const std::string& section) {
  if (!base.is_map() || !over.is_map()) return over;
  if (!section.empty() && changes_kind(base, over, section)) {
    ConfigNode fresh = over;
    fresh.set_replaced_keys(base.keys());
    return fresh;
  }
  ConfigNode inherited = base;
  if (section == "data") leave_generator(inherited, over.find("path"));
  std::vector<ConfigEntry> entries = inherited.entries();
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < entries.size(); ++i) index.emplace(entries[i].key, i);
  for (const ConfigEntry& entry : over.entries()) {
    const auto found = index.find(entry.key);
    if (found == index.end()) {
      entries.push_back(entry);
    } else {
      ConfigEntry& old = entries[found->second];
      old = {entry.key, entry.key_location,
             merge(old.value, entry.value, key_in(section, entry.key))};
    }
  }
  ConfigNode merged = ConfigNode::map(std::move(entries));
  merged.set_location(over.location());
  return merged;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

Location place_of(const std::string& origin, const std::string& path) {
  return {std::make_shared<const std::string>(concat(origin, ": ", path)), 0, 0};
}

void assign(ConfigNode& root, const Override& change) {
  const Location& location = change.value.location();
  ConfigNode* section = &root;
  for (size_t i = 0; i + 1 < change.path.size(); ++i) {
    const std::string& key = change.path[i];
    ConfigNode* next = section->find(key);
    if (next == nullptr || next->is_null()) {
      ConfigNode fresh = ConfigNode::map();
      fresh.set_location(location);
      section->set(key, std::move(fresh), location);
      next = section->find(key);
    }
    if (!next->is_map()) {
      throw located_error(location, Cause{ErrorCode::wrong_type, change.text}, "'", key, "' is ",
                          next->found(), ", so nothing can be set inside it; give its whole value");
    }
    section = next;
  }
  const std::string& key = change.path.back();
  if (section != &root && names_a_kind(key) &&
      changes_kind(*section, change.text.substr(0, change.text.rfind('.')), key, change.value)) {
    ConfigNode fresh = ConfigNode::map();
    fresh.set_location(location);
    fresh.set_replaced_keys(section->keys());
    *section = std::move(fresh);
  }
  section->set(key, change.value, location);
}

// The notes about the sections of `node`, whose path is `section`.
void collect_notes(const ConfigNode& node, const std::string& section,
                   std::vector<std::string>& notes) {
  if (!node.is_map()) return;
  std::string lost;
  for (const std::string& key : node.lost_keys()) lost += (lost.empty() ? "" : ", ") + key;
  if (!lost.empty()) {
    notes.push_back(concat(node.location().text(), ": a new ",
                           node.contains("name") ? "name" : "kind", " resets '", section,
                           "', without its former ", lost));
  }
  for (const ConfigEntry& entry : node.entries()) {
    collect_notes(entry.value, key_in(section, entry.key), notes);
  }
}

}  // namespace

ConfigNode merge_recipes(const ConfigNode& base, const ConfigNode& over) {
  return merge(base, over, "");
}

Override make_override(const std::string& path, ConfigNode value, const std::string& origin) {
  const Location location = place_of(origin, path);
  value.set_location_everywhere(location);
  Override change;
  change.value = std::move(value);
  change.text = path;
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    change.path.push_back(path.substr(start, end - start));
    start = end + 1;
    if (change.path.back().empty() || change.path.size() > kLongestPath) {
      throw located_error(location, Cause{ErrorCode::malformed, path},
                          "not a path of keys such as model.attention.rank");
    }
  }
  return change;
}

Override parse_override(const std::string& argument, const std::string& origin) {
  const size_t invalid = find_invalid_utf8(argument);
  require_usage(invalid == std::string::npos, Cause{ErrorCode::malformed, "", origin}, origin,
                ": an override is not valid UTF-8 at its byte ", invalid);
  const size_t equals = argument.find('=');
  require_usage(equals != std::string::npos && equals > 0, Cause{ErrorCode::malformed, "", origin},
                origin, ": '", argument, "' is not an override; write key.path=value");
  const std::string path = argument.substr(0, equals);
  const std::string text = trimmed(argument.substr(equals + 1));
  ConfigNode value;
  if (!text.empty() && std::string("{[\"'").find(text[0]) != std::string::npos) {
    try {
      value = parse_yaml(text, concat(origin, ": ", path));
    } catch (const UsageError& error) {
      throw UsageError({error.code(), path, error.place()},
                       concat(error.what(), " (quote the value for your shell?)"));
    }
  } else if (!is_null_text(text)) {
    value = ConfigNode::scalar(text);
  }
  return make_override(path, std::move(value), origin);
}

void apply_overrides(ConfigNode& root, std::vector<Override> overrides) {
  std::stable_sort(overrides.begin(), overrides.end(), [](const Override& a, const Override& b) {
    if (a.path.size() != b.path.size()) return a.path.size() < b.path.size();
    return names_a_kind(a.path.back()) && !names_a_kind(b.path.back());
  });
  for (const Override& change : overrides) {
    ConfigNode* data = change.text == "data.path" && root.is_map() ? root.find("data") : nullptr;
    if (data != nullptr) leave_generator(*data, &change.value);
  }
  for (size_t i = 0; i < overrides.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (overrides[i].path != overrides[j].path) continue;
      throw located_error(overrides[i].value.location(),
                          Cause{ErrorCode::repeated, overrides[i].text}, "given twice; keep one");
    }
    assign(root, overrides[i]);
  }
}

std::vector<std::string> restart_notes(const ConfigNode& root) {
  std::vector<std::string> notes;
  collect_notes(root, "", notes);
  return notes;
}

}  // namespace linnet
