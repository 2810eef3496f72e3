#include "attention/new_mechanism.h"

#include <algorithm>

#include "attention/new_mechanism_text.h"
#include "attention/registry.h"
#include "core/error.h"
#include "core/files.h"
#include "core/yaml.h"

namespace linnet {
namespace {

constexpr size_t kMaxName = 40;
// What a first recipe trains on, below linnet's source or installed headers.
constexpr std::string_view kText = "core/*.h";
// Names that are refused, each between blanks.
constexpr std::string_view kYamlWords = " null true false yes no on off ";
constexpr std::string_view kTakenNames =
    " attention autograd band binding chunked common conformance core cuda data delta detail "
    "diagonal fast layers linnet optim plugin primitives recipes simd std tensor_core test ";
constexpr std::string_view kKeywords =
    " alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t "
    "char16_t char32_t class co_await co_return co_yield compl concept const const_cast "
    "consteval constexpr constinit continue decltype default delete do double dynamic_cast "
    "else enum explicit export extern float for friend goto if inline int long mutable "
    "namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw try typedef typeid typename "
    "union unsigned using virtual void volatile wchar_t while xor xor_eq ";

void require_free_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  require_usage(!name.empty() && name.size() <= kMaxName && name[0] >= 'a' && name[0] <= 'z' &&
                    std::all_of(name.begin(), name.end(), plain) && !name.ends_with('_') &&
                    name.find("__") == std::string::npos,
                Cause{ErrorCode::malformed, "NAME"}, "'", name,
                "' is no name of a mechanism: take lower-case letters, digits and single _ between "
                "them, a letter first, at most ",
                kMaxName, " of them");
  const auto refuse_words = [&](std::string_view words, std::string_view reason) {
    require_usage(words.find(concat(" ", name, " ")) == std::string_view::npos,
                  Cause{ErrorCode::malformed, "NAME"}, "'", name, "' is ", reason,
                  "; choose another name, such as ", name, "_mix");
  };
  refuse_words(kYamlWords, "a value in YAML, so that recipes cannot name it");
  refuse_words(kTakenNames, "a namespace, a folder or a library that mechanisms use");
  refuse_words(kKeywords, "a keyword of C++");
  const auto& list = mechanisms();
  require_usage(std::none_of(list.begin(), list.end(),
                             [&](const Mechanism& known) { return known.name == name; }),
                Cause{ErrorCode::conflict, "NAME"}, "there is a mechanism '", name,
                "' already; choose another name");
}

std::string replaced(std::string text, std::string_view place, const std::string& value) {
  for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size()) {
    text.replace(at, place.size(), value);
  }
  return text;
}

std::string filled(const std::string& text, const std::string& name) {
  return replaced(replaced(text, "$NAME", name), "$include", std::string("#") + "include");
}

// Throws where a part of the path is there and is no folder.
void require_folder(const std::string& folder) {
  std::string at = folder;
  while (!exists(at) && parent_path(at) != at) at = parent_path(at);
  require_usage(is_directory(at), Cause{ErrorCode::conflict, "--plugin", at}, "--plugin: ", at,
                " is a file, and the plugin is written into a folder; name another");
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

LinnetPlace place_of(const std::string& program) {
  const std::string folder = parent_path(program), cache = join_path(folder, "CMakeCache.txt");
  if (exists(join_path(folder, "linnet-config.cmake")) && exists(cache)) {
    constexpr std::string_view kSource = "\nCMAKE_HOME_DIRECTORY:INTERNAL=";
    const std::string text = read_file(cache);
    const size_t at = text.find(kSource);
    require(at != std::string::npos, Cause{ErrorCode::malformed, "", cache}, cache,
            " does not say where the source is; configure the build again with cmake");
    const size_t begin = at + kSource.size();
    return {concat("-Dlinnet_DIR=", folder),
            join_path(text.substr(begin, text.find('\n', begin) - begin), kText)};
  }
  const std::string prefix = parent_path(folder), headers = join_path(prefix, "include/linnet");
  require_usage(is_directory(headers), Cause{ErrorCode::not_found, "--plugin", headers},
                "--plugin: there is no ", headers, ", against which a plugin is built, beside ",
                program,
                "; use a linnet in the folder of its build, or one that cmake --install wrote");
  return {concat("-DCMAKE_PREFIX_PATH=", prefix), join_path(headers, kText)};
}

std::vector<NewFile> new_plugin(const std::string& name, const std::string& folder,
                                const std::string& text) {
  require_free_name(name);
  require_folder(folder);
  std::string path = to_yaml(ConfigNode::scalar(text));  // in quotes where YAML needs them
  path.erase(path.find_last_not_of('\n') + 1);
  const auto at = [&](const std::string& file) { return join_path(folder, file); };
  return {{at("CMakeLists.txt"), filled(kNewCMake, name)},
          {at(name + ".cpp"),
           filled(std::string(kNewPluginBegin) + kNewBody + kNewEntry + kNewPluginEnd, name)},
          {at("README.md"), filled(std::string(kNewReadme) + kNewPluginReadme, name)},
          {at(name + ".yaml"), replaced(filled(kNewRecipe, name), "$TEXT", path)}};
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
