// linnet attention new: the files of a mechanism that builds and passes the suite as it is written,
// to be edited into another one.
#pragma once

#include <string>
#include <vector>

namespace linnet {

struct NewFile {
  std::string path;
  std::string contents;  // of the whole file
  bool exists = false;   // a list that gets lines for the mechanism; else nothing may lie there
};

// The linnet of a running program, as a plugin's build and a first recipe need it.
struct LinnetPlace {
  std::string package;  // option with which CMake finds it: -Dlinnet_DIR=... of a build
  std::string text;     // a pattern of source files of linnet, to train on
};
// Throws UsageError where `program`, a path of a linnet, lies neither in the folder of its build
// nor in an installed tree.
LinnetPlace place_of(const std::string& program);

// The files of a plugin in `folder`: CMakeLists.txt, NAME.cpp, README.md, NAME.yaml, whose recipe
// trains on the files `text`. Throws UsageError where `folder` is, or would lie in, a file.
std::vector<NewFile> new_plugin(const std::string& name, const std::string& folder,
                                const std::string& text);
// Those of a mechanism in the checkout `root`: its folder, and the lists that name every mechanism
// (registry, tables, comparison recipe). Throws UsageError where `root` is no checkout, and Error
// where a list has lost the place for the line.
std::vector<NewFile> new_in_checkout(const std::string& name, const std::string& root);
// Both throw UsageError unless the name is plain lower_case and free: no mechanism's, and no word
// of YAML or C++.

// Writes them, one after the other; nothing where a new file's path is taken (UsageError).
void write_new(const std::vector<NewFile>& files);

}  // namespace linnet
