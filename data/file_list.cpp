// Wildcards and folder walks over the file seam.
#include "data/file_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

bool has_wildcard(std::string_view name) {
  return name.find_first_of("*?") != name.npos;
}

// One spelling a file ("a//b", "./a/b"), so that a file listed twice is noticed.
std::string normal(const std::string& pattern) {
  return std::filesystem::path(pattern).lexically_normal().string();
}

struct Matches {
  std::set<std::string> found;
  // Folders that were searched, with what component of the pattern: several ** lead to each in
  // many ways.
  std::set<std::pair<std::string, size_t>> searched;
};

// Adds the paths that match the rest of a pattern, from its component `at` on, below `folder`.
void match(const std::string& folder, const std::vector<std::string>& components, size_t at,
           Matches& matches) {
  if (!matches.searched.emplace(folder, at).second) return;
  auto& found = matches.found;
  const std::string& component = components[at];
  const bool last = at + 1 == components.size();
  const auto below = [&](const std::string& name) {
    const std::string path = join_path(folder, name);
    if (last) {
      if (exists(path) && !is_directory(path)) found.insert(path);
    } else if (is_directory(path)) {
      match(path, components, at + 1, matches);
    }
  };
  if (!has_wildcard(component)) return below(component);
  const std::string listed = folder.empty() ? "." : folder;
  if (!is_directory(listed)) return;
  if (component == "**") {
    if (!last) match(folder, components, at + 1, matches);
    for (const std::string& name : file_system().list(listed)) {
      const std::string path = join_path(folder, name);
      if (name.starts_with('.')) continue;
      // Links to folders are not followed: a link to a parent would never end.
      const auto status = file_system().status_of_link(path);
      if (status && status->directory)
        match(path, components, at, matches);
      else if (last && exists(path) && !is_directory(path))
        found.insert(path);
    }
    return;
  }
  for (const std::string& name : file_system().list(listed))
    if (fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) == 0) below(name);
}

}  // namespace

std::vector<std::string> expand_pattern(const std::string& spelling) {
  require_usage(!spelling.empty(), Cause{ErrorCode::malformed},
                "an empty file pattern matches nothing");
  const std::string pattern = normal(spelling);
  if (!has_wildcard(pattern)) {
    require(exists(pattern), Cause{ErrorCode::not_found, "", pattern}, pattern, " does not exist");
    require(!is_directory(pattern), Cause{ErrorCode::wrong_type, "", pattern}, pattern,
            " is a folder, a file was expected");
    return {pattern};
  }
  std::vector<std::string> components;
  for (size_t at = 0; at < pattern.size();) {
    const size_t end = std::min(pattern.find('/', at), pattern.size());
    if (end > at) components.push_back(pattern.substr(at, end - at));
    at = end + 1;
  }
  Matches matches;
  match(pattern.front() == '/' ? "/" : "", components, 0, matches);
  const std::set<std::string>& found = matches.found;
  require(!found.empty(), Cause{ErrorCode::not_found, "", pattern}, "no file matches ", pattern);
  return {found.begin(), found.end()};
}

std::string fixed_folder(const std::string& pattern) {
  const std::string whole = normal(pattern);
  const size_t slash = whole.rfind('/', whole.find_first_of("*?"));
  if (slash == std::string::npos) return "";
  return whole.substr(0, std::max<size_t>(slash, 1));
}

std::vector<std::string> files_below(const std::string& folder,
                                     const std::function<bool(const std::string&)>& enter) {
  require(is_directory(folder), Cause{ErrorCode::not_found, "", folder}, folder,
          exists(folder) ? " is a file, a folder was expected" : " does not exist");
  std::vector<std::string> found, pending = {""};
  while (!pending.empty()) {
    const std::string relative = pending.back();
    pending.pop_back();
    for (const std::string& name : file_system().list(join_path(folder, relative))) {
      if (name.starts_with('.')) continue;
      const std::string path = relative.empty() ? name : join_path(relative, name);
      const std::string full = join_path(folder, path);
      // Links to folders are not followed: a link to a parent would never end.
      const auto status = file_system().status_of_link(full);
      if (status && status->directory) {
        if (enter(path)) pending.push_back(path);
      } else if (exists(full) && !is_directory(full)) {
        found.push_back(path);
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace linnet
