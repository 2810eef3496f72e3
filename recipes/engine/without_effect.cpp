#include "recipes/engine/without_effect.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

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
  if (!recipe.is_map() || !recipe.contains("published")) return "";
  std::string changed;
  for (const Override& change : changes) {
    if (change.path[0] == "published") return "";
    std::string path;
    for (const std::string& key : change.path) path += concat(path.empty() ? "" : ".", key);
    if (changed.empty() && !is_without_effect(path)) changed = path;
  }
  if (!changed.empty()) recipe.erase("published");
  return changed;
}

}  // namespace linnet
