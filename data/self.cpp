#include "data/self.h"

#include <array>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "data/file_list.h"
#include "data/lines.h"

namespace linnet {
namespace {

constexpr uint64_t kFileLimitBytes = uint64_t{1} << 20;
constexpr const char* kHere = ".";

struct SelfOptions : SplitFractions, TextEncoding {
  static void describe(ConfigDescription<SelfOptions>& d) {
    d.group<SplitFractions>();
    d.group<TextEncoding>();
  }
};

// Names of folders that a checkout's .gitignore leaves out whole: lines such as "/build/".
std::set<std::string> ignored_folders(const std::string& root) {
  std::set<std::string> ignored;
  const std::string path = join_path(root, ".gitignore");
  if (!exists(path)) return ignored;
  const std::string text = read_file(path, kFileLimitBytes);
  for (TextLines lines(without_byte_order_mark(text)); lines.next();) {
    std::string_view name = lines.line();
    if (name.starts_with('/')) name.remove_prefix(1);
    if (name.ends_with('/')) ignored.emplace(name.substr(0, name.size() - 1));
  }
  return ignored;
}

bool is_script(const std::string& path) {
  std::array<char, 2> start{};
  return File(path, OpenMode::read).read(start) == 2 && start[0] == '#' && start[1] == '!';
}

TextSources find_self(const DataConfig& config) {
  const std::string root = config.path.empty() ? kHere : config.path;
  const auto ignored = ignored_folders(root);
  const auto enter = [&](const std::string& folder) {
    return !ignored.contains(file_name(folder)) && !holds_run(join_path(root, folder));
  };
  TextSources sources;
  sources.layout = "text files of a source checkout";
  std::vector<SourceFile> files;
  for (const std::string& name : files_below(root, enter)) {
    const std::string path = join_path(root, name);
    const uint64_t bytes = file_bytes(path);
    if (bytes == 0 || bytes > kFileLimitBytes) continue;
    const bool extension =
        has_extension(name, {".h", ".cpp", ".cu", ".md", ".yaml", ".txt", ".cmake", ".py"});
    const bool bare = file_name(name).find('.') == std::string::npos;
    if (extension || (bare && is_script(path))) files.push_back({path, name});
  }
  require(files.size() >= 3, Cause{ErrorCode::malformed, "data.path", root}, root,
          " does not look like a source checkout: ", files.size(),
          " text files found (.h .cpp .md .yaml .txt .cmake .py or scripts)");
  split_by_file(std::move(files), config.path, config.options.as<SplitFractions>(), sources);
  return sources;
}

Likeness likeness_of_checkout(const std::string& path) {
  const auto has = [&](const char* name) { return exists(join_path(path, name)); };
  const bool like = is_directory(path) && (has(".git") || has("CMakeLists.txt"));
  return like ? Likeness::place : Likeness::none;
}

}  // namespace

DataKind self_kind() {
  return {.name = "self",
          .help = "the text files of a source checkout, split by file",
          .options = KindOptions(SelfOptions()),
          .gives = TextData{.find = find_self},
          .likeness = likeness_of_checkout,
          .without_path = "the checkout that is the current folder",
          .default_path = kHere,
          .source_keys = {"validation_fraction", "test_fraction"}};
}

}  // namespace linnet
