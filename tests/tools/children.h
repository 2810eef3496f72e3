// The processes that a program under test started.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/files.h"

namespace linnet::test {

// Those whose parent is `parent`, in the order of their start.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const std::string& name : file_system().list("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + name + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t end = text.rfind(") ");
    if (end == std::string::npos) continue;
    // ") S PARENT ..."
    if (std::atoi(text.c_str() + end + 4) == parent) children.push_back(std::stoi(name));
  }
  std::sort(children.begin(), children.end());
  return children;
}

}  // namespace linnet::test
