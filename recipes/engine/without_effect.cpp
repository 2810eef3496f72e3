#include "recipes/engine/without_effect.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "recipes/engine/sweep_axis.h"

namespace linnet {
namespace {

constexpr std::array<std::string_view, 25> kWithoutEffect{"name",
                                                          "description",
                                                          "seed",
                                                          "generate",
                                                          "sweep",
                                                          "published",
                                                          "checkpoint.every_steps",
                                                          "checkpoint.every_minutes",
                                                          "checkpoint.keep",
                                                          "train.log_every_steps",
                                                          "train.max_nonfinite_steps",
                                                          "train.micro_batch",
                                                          "train.recompute",
                                                          "train.cuda_graph",
                                                          "train.backend",
                                                          "train.bucket_mib",
                                                          "train.shard_optimizer",
                                                          "evaluate.batch",
                                                          "init.from",
                                                          "data.cache",
                                                          "data.path",
                                                          "data.train",
                                                          "data.validation",
                                                          "data.test",
                                                          "data.tokenizer.path"};

// Whether a section `published` says which rows its recipe measures.
bool names_rows(const ConfigNode& published) {
  return published.is_map() && (published.contains("table") || published.contains("task"));
}

// The axis of that name in the recipe's sweep; nullptr for none.
const ConfigNode* axis_of(const ConfigNode& recipe, const std::string& name) {
  const ConfigNode* sweep = recipe.find("sweep");
  return sweep == nullptr || !sweep->is_map() ? nullptr : sweep->find(name);
}

bool is_inherited(const ConfigEntry& axis, const ConfigNode& base) {
  const ConfigNode* before = axis_of(base, axis.key);
  return before != nullptr && *before == axis.value;
}

std::vector<ConfigEntry> axes_of(const ConfigNode& recipe) {
  const ConfigNode* sweep = recipe.find("sweep");
  return sweep == nullptr || !sweep->is_map() ? std::vector<ConfigEntry>() : sweep->entries();
}

// The first path with an effect that an axis assigns which the base has not, or not like this; ""
// for none.
std::string swept_otherwise(const ConfigNode& base, const ConfigNode& recipe) {
  for (const ConfigEntry& axis : axes_of(recipe)) {
    if (is_inherited(axis, base)) continue;
    for (const std::string& path : paths_of(axis)) {
      if (!is_without_effect(path)) return path;
    }
  }
  return "";
}

// Takes `published` of the base out of the recipe that extends it, with what labelled values of the
// sweep say of it. Returns whether that named rows.
bool drop_claims(ConfigNode& recipe, const ConfigNode& base) {
  const ConfigNode* inherited = base.find("published");
  const bool whole = inherited != nullptr && names_rows(*inherited);
  bool dropped = whole;
  if (whole) recipe.erase("published");
  for (const ConfigEntry& axis : axes_of(recipe)) {
    if (!axis.value.is_sequence()) continue;
    const bool given_there = is_inherited(axis, base);
    std::vector<ConfigNode> values = axis.value.items();
    for (ConfigNode& value : values) {
      if (!value.is_map() || !value.contains("label")) continue;
      for (const ConfigEntry& entry : std::vector<ConfigEntry>(value.entries())) {
        const bool rows = given_there && entry.key == "published" && names_rows(entry.value);
        if (rows || (whole && entry.key.starts_with("published."))) value.erase(entry.key);
        dropped = dropped || rows;
      }
    }
    ConfigNode left = ConfigNode::sequence(std::move(values));
    left.set_location(axis.value.location());
    recipe.find("sweep")->set(axis.key, std::move(left), axis.key_location);
  }
  return dropped;
}

}  // namespace

bool is_without_effect(const std::string& path) {
  return std::any_of(kWithoutEffect.begin(), kWithoutEffect.end(), [&](std::string_view each) {
    return path == each || (path.starts_with(each) && path[each.size()] == '.');
  });
}

std::string difference_apart_from(const ConfigNode& a, const ConfigNode& b, const std::string& path,
                                  const std::function<bool(const std::string&)>& is_excused) {
  if (a == b || is_excused(path)) return "";
  if (!a.is_map() || !b.is_map()) return path;
  std::set<std::string> keys;
  for (const ConfigNode* node : {&a, &b}) {
    for (const std::string& key : node->keys()) keys.insert(key);
  }
  const ConfigNode absent;
  for (const std::string& key : keys) {
    const ConfigNode* left = a.find(key);
    const ConfigNode* right = b.find(key);
    const std::string found =
        difference_apart_from(left == nullptr ? absent : *left, right == nullptr ? absent : *right,
                              path.empty() ? key : concat(path, '.', key), is_excused);
    if (!found.empty()) return found;
  }
  return "";
}

std::string difference_with_effect(const ConfigNode& a, const ConfigNode& b,
                                   const std::string& path) {
  return difference_apart_from(a, b, path, is_without_effect);
}

std::string leave_published(ConfigNode& recipe, const std::vector<Override>& changes) {
  const ConfigNode* published = recipe.is_map() ? recipe.find("published") : nullptr;
  if (published == nullptr || published->is_null()) return "";
  for (const Override& change : changes) {
    if (is_without_effect(change.text)) continue;
    recipe.erase("published");
    return change.text;
  }
  return "";
}

std::string leave_inherited_published(ConfigNode& recipe, const ConfigNode& base,
                                      const ConfigNode& own) {
  const ConfigNode* published = own.find("published");
  if (published != nullptr && (!published->is_map() || names_rows(*published))) return "";
  std::string changed = difference_with_effect(base, recipe);
  if (changed.empty()) changed = swept_otherwise(base, recipe);
  if (changed.empty() || !drop_claims(recipe, base)) return "";
  return changed;
}

}  // namespace linnet
