// Loading plugins: shared libraries that register mechanisms of their own (attention/plugin.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linnet {

struct Plugin {
  std::string path;                     // absolute
  std::string hash;                     // of the file
  std::vector<std::string> mechanisms;  // names, as they were registered
};

// Loads a shared library for the rest of the program and registers its mechanisms; a file that is
// loaded already, by whatever path, is loaded once. Throws
// UsageError for a file that is no plugin, was built for another ABI, registers nothing or a name
// that is taken; mechanisms that it registered before that stay.
void load_plugin(const std::string& path);

// In the order of loading.
const std::vector<Plugin>& loaded_plugins();
// The plugin that a mechanism comes from; null for those of linnet itself.
const Plugin* plugin_of(std::string_view mechanism);

}  // namespace linnet
