#include "recipes/engine/recipe_file.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/files.h"
#include "core/suggest.h"
#include "core/yaml.h"
#include "recipes/engine/recipe_merge.h"
#include "recipes/engine/recipe_name.h"
#include "recipes/engine/without_effect.h"

namespace linnet {
namespace {

constexpr size_t kLongestChain = 8;  // files that extend each other

std::string without_extension(const std::string& name) {
  for (const std::string_view extension : {".yaml", ".yml"}) {
    if (name.ends_with(extension)) return name.substr(0, name.size() - extension.size());
  }
  return name;
}

// `chain` holds the files on the way here, outermost first.
RecipeFile load_extended(const std::string& path, std::vector<std::string>& chain) {
  ConfigNode node = load_yaml(path);
  if (!node.is_map()) {
    throw located_error(node.location(), Cause{ErrorCode::wrong_type},
                        "a recipe is a section of 'key: value' lines, found ", node.found());
  }
  std::error_code code;
  chain.push_back(std::filesystem::weakly_canonical(path, code).string());
  const ConfigNode* extends = node.find("extends");
  if (extends == nullptr) return {std::move(node), ""};
  const Location location = extends->location();
  if (!extends->is_scalar() || extends->raw().empty()) {
    throw located_error(location, Cause{ErrorCode::wrong_type, "extends"},
                        "'extends' must be the path of one recipe, found ", extends->found());
  }
  const std::string folder = is_descriptor(path) ? "" : parent_path(path);
  const std::string base_path = join_path(folder, extends->raw());
  if (!is_there(base_path)) {
    throw located_error(location, Cause{ErrorCode::not_found, "extends"}, "'extends' names ",
                        base_path, ", which does not exist; ",
                        near_recipe(base_path, "name a recipe by its path relative to this file"));
  }
  if (std::count(chain.begin(), chain.end(),
                 std::filesystem::weakly_canonical(base_path, code).string()) > 0) {
    throw located_error(location, Cause{ErrorCode::conflict, "extends"},
                        "'extends' goes in a circle back to ", base_path);
  }
  if (chain.size() >= kLongestChain) {
    throw located_error(location, Cause{ErrorCode::out_of_range, "extends"},
                        "'extends' chains more than ", kLongestChain, " files");
  }
  node.erase("extends");
  RecipeFile base = load_extended(base_path, chain);
  // A recipe does not inherit its base's name and description.
  for (const char* key : {"name", "description"}) base.node.erase(key);
  RecipeFile file{merge_recipes(base.node, node), ""};
  file.left_by = leave_inherited_published(file.node, base.node, node);
  if (file.left_by.empty() && !file.node.contains("published")) file.left_by = base.left_by;
  return file;
}

}  // namespace

bool is_there(const std::string& path) {
  try {
    return exists(path);
  } catch (const Error&) {
    return false;
  }
}

std::string near_recipe(const std::string& path, const std::string& otherwise) {
  std::map<std::string, std::string> files;  // by their names without extension
  try {
    for (const std::string& name : file_system().list(parent_path(path))) {
      if (const std::string stem = without_extension(name); stem != name) files[stem] = name;
    }
  } catch (const Error&) {  // the folder is not there either, or cannot be read
    return otherwise;
  }
  std::vector<std::string> stems;
  for (const auto& [stem, name] : files) stems.push_back(stem);
  const auto near = nearest_words(without_extension(file_name(path)), stems);
  if (near.empty()) return otherwise;
  return concat("did you mean ", path.substr(0, path.rfind('/') + 1), files.at(near.front()), "?");
}

RecipeFile read_recipe_file(const std::string& path) {
  std::vector<std::string> chain;
  return load_extended(path, chain);
}

}  // namespace linnet
