#include "attention/new_mechanism.h"

#include <algorithm>

#include "attention/new_mechanism_text.h"
#include "attention/registry.h"
#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

constexpr size_t kMaxName = 40;

void require_free_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  require_usage(!name.empty() && name.size() <= kMaxName && name[0] >= 'a' && name[0] <= 'z' &&
                    std::all_of(name.begin(), name.end(), plain),
                Cause{ErrorCode::malformed, "NAME"}, "'", name,
                "' is no name of a mechanism: take lower-case letters, digits and _, a letter "
                "first, at most ",
                kMaxName, " of them");
  constexpr std::string_view kYamlWords[] = {"null", "true", "false", "yes", "no", "on", "off"};
  require_usage(
      std::find(std::begin(kYamlWords), std::end(kYamlWords), name) == std::end(kYamlWords),
      Cause{ErrorCode::malformed, "NAME"}, "'", name,
      "' is a value in YAML, so that recipes cannot name it; choose another name");
  const auto& list = mechanisms();
  require_usage(std::none_of(list.begin(), list.end(),
                             [&](const Mechanism& known) { return known.name == name; }),
                Cause{ErrorCode::conflict, "NAME"}, "there is a mechanism '", name,
                "' already; choose another name");
}

std::string filled(std::string text, const std::string& name) {
  for (const auto& [place, value] : {std::pair<std::string, std::string>{"$NAME", name},
                                     {"$include", std::string("#") + "include"}}) {
    for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size()) {
      text.replace(at, place.size(), value);
    }
  }
  return text;
}

// The file with `line` before the first `before` that follows `from`.
NewFile with_line(const std::string& path, const std::string& from, const std::string& before,
                  const std::string& line) {
  std::string text = read_file(path);
  const size_t begin = text.find(from);
  const size_t at = begin == std::string::npos ? begin : text.find(before, begin);
  require(at != std::string::npos, Cause{ErrorCode::malformed, "", path}, path,
          " has lost the place for the line\n", line, "add the line by hand where it belongs");
  text.insert(at, line);
  return {path, text, true};
}

// The registry's include, in the order of clang-format, and its line.
NewFile registry_with(const std::string& path, const std::string& name) {
  NewFile file = with_line(path, "static std::vector<Mechanism> list", "    return result;\n",
                           filled("    add_to(result, $NAME_mechanism());\n", name));
  const std::string include = filled("#include \"attention/$NAME/$NAME.h\"\n", name);
  constexpr std::string_view kOurs = "#include \"attention/";
  const size_t own = file.contents.find("#include \"attention/registry.h\"");
  require(own != std::string::npos, Cause{ErrorCode::malformed, "", path}, path,
          " does not include attention/registry.h any more; add the mechanism by hand");
  size_t at = file.contents.find('\n', own) + 2;
  while (file.contents.compare(at, kOurs.size(), kOurs) == 0 &&
         file.contents.compare(at, include.size(), include) < 0) {
    at = file.contents.find('\n', at) + 1;
  }
  file.contents.insert(at, include);
  return file;
}

// The attention README's lines of the table of mechanisms and of that of official code.
NewFile tables_with(const std::string& path, const std::string& name) {
  NewFile file = with_line(
      path, "<!-- mechanisms:", "<!-- end -->",
      filled(
          "| [$NAME]($NAME/README.md) | Linear attention in which older tokens fade | causal | T | "
          "8192 | 16640 |  | an example |\n",
          name));
  const size_t section = file.contents.find("\n## Agreement with official code\n");
  const size_t end = file.contents.find("\n\n", file.contents.find("\n|---|", section));
  require(section != std::string::npos && end != std::string::npos,
          Cause{ErrorCode::malformed, "", path}, path,
          " has lost its table of official code; add the line of ", name, " by hand");
  file.contents.insert(end + 1, filled("| [$NAME]($NAME/README.md) | none released | formula of "
                                       "ours |\n",
                                       name));
  return file;
}

}  // namespace

std::vector<NewFile> new_plugin(const std::string& name, const std::string& folder) {
  require_free_name(name);
  const auto at = [&](const std::string& file) { return join_path(folder, file); };
  return {{at("CMakeLists.txt"), filled(kNewCMake, name)},
          {at(name + ".cpp"),
           filled(std::string(kNewPluginBegin) + kNewBody + kNewEntry + kNewPluginEnd, name)},
          {at("README.md"), filled(std::string(kNewReadme) + kNewPluginReadme, name)},
          {at(name + ".yaml"), filled(kNewRecipe, name)}};
}

std::vector<NewFile> new_in_checkout(const std::string& name, const std::string& root) {
  require_free_name(name);
  const std::string registry = join_path(root, "attention/registry.cpp");
  require_usage(exists(registry), Cause{ErrorCode::not_found, "--plugin"}, "there is no ", registry,
                ": run this in the root of linnet's source, or write a plugin with --plugin DIR");
  const std::string folder = join_path(root, "attention/" + name);
  require_usage(!exists(folder), Cause{ErrorCode::conflict, "NAME", folder}, folder,
                " exists already, and nothing is overwritten; choose another name");
  const auto at = [&](const std::string& file) { return join_path(folder, file); };
  const std::string code = std::string(kNewBegin) + kNewBody + "\n}  // namespace\n" + kNewEntry +
                           "\n}  // namespace linnet\n";
  return {{at(name + ".h"), filled(kNewHeader, name)},
          {at(name + ".cpp"), filled(code, name)},
          {at("README.md"), filled(kNewReadme, name)},
          registry_with(registry, name),
          tables_with(join_path(root, "attention/README.md"), name),
          with_line(join_path(root, "recipes/quickstart/compare.yaml"), "  model.attention:\n",
                    "    - {name: linear}\n", filled("    - {name: $NAME}\n", name))};
}

void write_new(const std::vector<NewFile>& files) {
  for (const NewFile& file : files) {
    require_usage(file.exists || !exists(file.path), Cause{ErrorCode::conflict, "", file.path},
                  file.path,
                  " exists already, and nothing is overwritten; take another folder or name");
  }
  for (const NewFile& file : files) {
    create_directories(parent_path(file.path));
    write_file_atomically(file.path, file.contents);
  }
}

}  // namespace linnet
