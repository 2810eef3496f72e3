#include "recipes/engine/token_tree.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "core/config.h"
#include "core/error.h"
#include "core/files.h"
#include "core/yaml.h"

namespace linnet {
namespace {

using Path = std::vector<int64_t>;

std::string text_of(const Path& path) {
  std::string text = "[";
  for (const int64_t rank : path) text += concat(text.size() > 1 ? ", " : "", rank);
  return text + "]";
}

// kMedusaTree: below each of these nodes the best so many guesses.
TokenTree medusa_tree() {
  const std::array<std::pair<Path, int64_t>, 21> children = {{
      {{}, 10},    {{0}, 10},   {{1}, 7},    {{2}, 3},    {{3}, 2},     {{4}, 1},    {{5}, 1},
      {{6}, 1},    {{7}, 1},    {{8}, 1},    {{9}, 1},    {{0, 0}, 10}, {{0, 1}, 3}, {{0, 2}, 2},
      {{0, 3}, 1}, {{0, 4}, 1}, {{0, 5}, 1}, {{0, 6}, 1}, {{0, 7}, 1},  {{1, 0}, 2}, {{2, 0}, 1},
  }};
  std::vector<Path> paths = {{0, 0, 0, 0}, {0, 0, 0, 1}};
  for (const auto& [above, count] : children) {
    for (int64_t rank = 0; rank < count; ++rank) {
      paths.push_back(above);
      paths.back().push_back(rank);
    }
  }
  return tree_of_paths(std::move(paths));
}

struct TreeFile {
  std::string tree;
  std::optional<int64_t> chain;
  std::optional<std::vector<Path>> paths;

  static void describe(ConfigDescription<TreeFile>& d) {
    d.field("tree", &TreeFile::tree, "a tree by its name");
    d.optional("chain", &TreeFile::chain, "the best guess of each of so many heads").range(1, 16);
    d.optional("paths", &TreeFile::paths,
               "guesses by their ranks behind each other, each with the paths to it");
  }
};

}  // namespace

int64_t TokenTree::leaves() const {
  std::vector<bool> inner(parents.size());
  for (const int64_t parent : parents) {
    if (parent >= 0) inner[static_cast<size_t>(parent)] = true;
  }
  return std::count(inner.begin(), inner.end(), false);
}

TokenTree TokenTree::down_to(int64_t depth) const {
  const auto count = std::upper_bound(depths.begin(), depths.end(), depth) - depths.begin();
  TokenTree part = *this;
  for (std::vector<int64_t>* list : {&part.parents, &part.depths, &part.ranks}) {
    list->resize(static_cast<size_t>(count));
  }
  return part;
}

std::vector<int64_t> TokenTree::path(int64_t node) const {
  Path path;
  for (; node > 0; node = parents[static_cast<size_t>(node)]) {
    path.push_back(ranks[static_cast<size_t>(node)]);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

TokenTree tree_of_paths(std::vector<Path> paths) {
  require_usage(std::ssize(paths) < kMaxNodes, Cause{ErrorCode::out_of_range, "paths"},
                "a tree has ", "at most ", kMaxNodes - 1, " guesses, and this one has ",
                paths.size());
  std::sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  TokenTree tree;
  std::map<Path, int64_t> nodes{{{}, 0}};
  for (const Path& path : paths) {
    require_usage(!path.empty(), Cause{ErrorCode::malformed, "paths"},
                  "a path of a tree has at least one guess, and one of these is empty");
    require_usage(path.back() >= 0, Cause{ErrorCode::out_of_range, "paths"}, "path ", text_of(path),
                  " of the tree has a rank below 0, which is that of the best guess");
    const auto above = nodes.find(Path(path.begin(), path.end() - 1));
    require_usage(above != nodes.end(), Cause{ErrorCode::malformed, "paths"}, "path ",
                  text_of(path), " of the tree begins with no other of its paths: add ",
                  text_of(Path(path.begin(), path.end() - 1)));
    require_usage(nodes.emplace(path, tree.size()).second, Cause{ErrorCode::repeated, "paths"},
                  "path ", text_of(path), " is in the tree twice");
    tree.parents.push_back(above->second);
    tree.depths.push_back(std::ssize(path));
    tree.ranks.push_back(path.back());
  }
  return tree;
}

TokenTree chain_tree(int64_t depth) {
  std::vector<Path> paths;
  for (int64_t k = 1; k <= depth; ++k) paths.emplace_back(static_cast<size_t>(k), 0);
  return tree_of_paths(std::move(paths));
}

TokenTree named_tree(const std::string& name) {
  require_usage(name == kMedusaTree, Cause{ErrorCode::unknown_name, "tree"}, "there is no tree '",
                name, "'; the one with a name is ", kMedusaTree);
  return medusa_tree();
}

TokenTree load_tree(const std::string& name_or_file) {
  if (name_or_file == kMedusaTree) return medusa_tree();
  require_usage(exists(name_or_file), Cause{ErrorCode::not_found, "", name_or_file},
                "there is no file ", name_or_file,
                "; give a YAML file that holds a tree, or the name ", kMedusaTree);
  const ConfigNode node = load_yaml(name_or_file);
  const auto file = parse_config<TreeFile>(node);
  std::vector<const char*> given;
  if (!file.tree.empty()) given.push_back("tree");
  if (file.chain) given.push_back("chain");
  if (file.paths) given.push_back("paths");
  require_usage(!given.empty(), Cause{ErrorCode::malformed, "", name_or_file}, name_or_file,
                " holds no tree: give it one of 'tree: ", kMedusaTree,
                "', 'chain: 4' and 'paths: [[0], [1], [0, 0]]'");
  if (given.size() > 1) {
    throw located_error(node.location_of(given[1]), Cause{ErrorCode::conflict, given[1]},
                        concat("'", given[0], "' and '", given[1],
                               "' are a tree each, and a file holds one: remove one of them"));
  }
  try {
    if (!file.tree.empty()) return named_tree(file.tree);
    return file.chain ? chain_tree(*file.chain) : tree_of_paths(*file.paths);
  } catch (const UsageError& error) {
    throw located_error(node.location_of(error.key()), Cause{error.code(), error.key()},
                        error.what());
  }
}

std::string tree_yaml(const TokenTree& tree, const std::vector<std::string>& comments) {
  std::string text;
  for (const std::string& comment : comments) text += concat("# ", comment, "\n");
  text += tree.size() > 1 ? "paths:\n" : "paths: []\n";
  for (int64_t node = 1; node < tree.size(); ++node) {
    text += concat("  - ", text_of(tree.path(node)), "\n");
  }
  return text;
}

}  // namespace linnet
