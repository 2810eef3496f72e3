// linnet recipe list | show | schema | check: recipes without running them.
#include "recipes/engine/recipe_check.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/echo.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/suggest.h"
#include "core/yaml.h"
#include "tools/cli/commands.h"

namespace linnet::cli {
namespace {

int list(const std::string& folder, bool json) {
  const std::vector<RecipeListing> recipes = list_recipes(folder);
  JsonValue array = JsonValue::array();
  size_t width = 0;
  for (const RecipeListing& recipe : recipes) width = std::max(width, recipe.path.size());
  for (const RecipeListing& recipe : recipes) {
    if (json) {
      array.push(JsonValue::object()
                     .set("path", recipe.path)
                     .set("name", recipe.name)
                     .set("description", recipe.description)
                     .set("error", recipe.error));
    } else {
      const std::string said = recipe.description.empty() ? "(no description)" : recipe.description;
      std::cout << std::left << std::setw(static_cast<int>(width) + 2) << recipe.path
                << printable(recipe.error.empty() ? said : "UNREADABLE: " + recipe.error) << "\n";
    }
  }
  if (json) std::cout << JsonValue::object().set("recipes", array).dump() << "\n";
  return 0;
}

// The keys of a section ("optim.schedule") or of the whole recipe, or one key ("optim.lr").
int schema(const std::string& path) {
  require_usage(path != "model.attention", Cause{ErrorCode::unknown_name, path},
                "the keys of model.attention depend on its name: 'linnet attention list' has the "
                "names, 'linnet attention show NAME' the keys");
  ConfigSchema found = schema_of<Recipe>();
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    std::vector<std::string> keys;
    std::vector<FieldSchema> next;  // several where kinds of a section have a key of that name
    for (const FieldSchema& field : found.fields) {
      keys.push_back(field.name);
      if (field.name == key) next.push_back(field);
    }
    require_usage(!next.empty(), Cause{ErrorCode::unknown_name, path}, "there is no key '", path,
                  "' in a recipe; ", suggestion(key, keys));
    std::vector<FieldSchema> below;
    for (const FieldSchema& field : next) {
      below.insert(below.end(), field.fields.begin(), field.fields.end());
    }
    require_usage(end == path.size() || !below.empty(), Cause{ErrorCode::unknown_name, path}, "'",
                  path.substr(0, end), "' holds no keys that are known beforehand");
    found.fields = below.empty() ? std::move(next) : std::move(below);
    begin = end + 1;
  }
  std::cout << format_schema(found);
  return 0;
}

// An argument that has an = and is no file is an override, for all of the recipes. A recipe whose
// data or model are missing is one that train would refuse, unless they may be.
int check(const std::vector<std::string>& arguments, bool allow_missing) {
  std::vector<std::string> paths, overrides;
  for (const std::string& argument : arguments) {
    const bool path = argument.find('=') == std::string::npos || exists(argument);
    (path ? paths : overrides).push_back(argument);
  }
  require_usage(!paths.empty(), Cause{ErrorCode::missing_key, "RECIPE"},
                "RECIPE is required: the files to check with these overrides");
  int code = 0;
  for (const std::string& path : paths) {
    try {
      const Unread unread = check_recipe(path, overrides, allow_missing);
      if (allow_missing || unread.data.empty()) {
        std::cout << path << ": ok";
        if (!unread.data.empty()) std::cout << ", but not checked with its data: " << unread.data;
        if (!unread.model.empty()) {
          std::cout << ", but not checked with the model it begins from: " << unread.model;
        }
        std::cout << "\n";
      } else {
        log_error(path, ": its data are missing: ", unread.data,
                  "; the rest is ok: put the data there, name others (data.path=DIR), or check "
                  "without them by --allow-missing-data");
        code = std::max<int>(code, kFailed);
      }
    } catch (const UsageError& error) {
      log_error(error.what());
      code = kUnusable;
    } catch (const Error& error) {  // data that are there but unusable
      log_error(error.what());
      code = std::max<int>(code, kFailed);
    }
  }
  return code;
}

}  // namespace

void add_recipe(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("recipe", "list, show, check or explain recipes");
  command->require_subcommand(1);

  CLI::App* lister = command->add_subcommand("list", "the recipes below a folder");
  auto folder = std::make_shared<std::string>("recipes");
  auto json = std::make_shared<bool>(false);
  lister->add_option("FOLDER", *folder, "where to look")->capture_default_str();
  lister->add_flag("--json", *json, "one JSON object on stdout");
  lister->callback([=, &chosen] { chosen = [=] { return list(*folder, *json); }; });

  CLI::App* show = command->add_subcommand("show", "the resolved recipe with all defaults");
  auto path = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  auto point = std::make_shared<std::string>();
  show->add_option("RECIPE", *path, "a YAML file")->required();
  show->add_option("OVERRIDES", *overrides, "key.path=value ...");
  show->add_option("--point", *point, "this point of the recipe's sweep, e.g. lr=0.001");
  add_plugin_option(*show);
  show->callback([=, &chosen] {
    chosen = [=] {
      const Recipe recipe = point->empty()
                                ? load_recipe(*path, *overrides)
                                : parse_recipe(load_recipe_point(*path, *overrides, *point).node);
      std::cout << to_yaml(recipe.resolved);
      return 0;
    };
  });

  CLI::App* keys =
      command->add_subcommand("schema", "every key of a recipe: meaning, type, range, default");
  auto section = std::make_shared<std::string>();
  keys->add_option("SECTION", *section,
                   "only this section or key, e.g. optim.schedule or optim.lr");
  keys->callback([=, &chosen] { chosen = [=] { return schema(*section); }; });

  CLI::App* checker = command->add_subcommand(
      "check",
      "whether train would refuse recipes, whose data are read for it; exit code 2 where a recipe "
      "is refused, else 1 where data are missing or unusable");
  auto paths = std::make_shared<std::vector<std::string>>();
  checker->add_option("RECIPE", *paths, "YAML files, and key.path=value ... for all of them")
      ->required();
  auto allow_missing = std::make_shared<bool>(false);
  checker->add_flag("--allow-missing-data", *allow_missing,
                    "check the rest of recipes whose data, files of the tokenizer, or model that "
                    "init.from names, are not there, and say so; what is there must be usable");
  add_plugin_option(*checker);
  checker->callback([=, &chosen] { chosen = [=] { return check(*paths, *allow_missing); }; });
}

}  // namespace linnet::cli
