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

// The files of a plugin in `folder`: CMakeLists.txt, NAME.cpp, README.md, NAME.yaml.
std::vector<NewFile> new_plugin(const std::string& name, const std::string& folder);
// Those of a mechanism in the checkout `root`: its folder, and the lists that name every mechanism
// (registry, tables, comparison recipe). Throws UsageError where `root` is no checkout, and Error
// where a list has lost the place for the line.
std::vector<NewFile> new_in_checkout(const std::string& name, const std::string& root);
// Both throw UsageError unless the name is plain lower_case and free.

// Writes them, one after the other; nothing where a new file's path is taken (UsageError).
void write_new(const std::vector<NewFile>& files);

}  // namespace linnet
