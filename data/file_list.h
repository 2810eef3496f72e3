// Lists of files: patterns with wildcards, and all files below a folder, in a fixed order.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace linnet {

// Files that match `pattern`, sorted by bytes. * and ? match inside one name (not a leading dot),
// ** matches any number of folders, but follows no link to a folder. A pattern without wildcards is
// the file itself. Throws Error naming the pattern when nothing matches.
std::vector<std::string> expand_pattern(const std::string& pattern);

// The folder of a pattern as far as it has no wildcard: "books" of "books/*.txt" and of
// "books/a.txt", "" of "*.txt".
std::string fixed_folder(const std::string& pattern);

// Paths, relative to `folder` and sorted, of all files below it. Names that begin with a dot are
// left out; `enter(relative)` may refuse a folder. Throws Error when `folder` is not a folder.
std::vector<std::string> files_below(
    const std::string& folder,
    const std::function<bool(const std::string&)>& enter = [](const std::string&) { return true; });

}  // namespace linnet
