#include "attention/plugin_loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "attention/plugin.h"
#include "attention/registry.h"
#include "core/files.h"
#include "core/hash.h"

namespace linnet {
namespace {

constexpr const char* kOption = "--plugin";
constexpr const char* kNotLoaded =
    "expected a shared library that was built against this linnet (attention/README.md): ";

std::vector<Plugin>& plugins() {
  static std::vector<Plugin> list;
  return list;
}

template <typename Function>
Function* exported(void* library, const std::string& path, const char* name) {
  void* symbol = ::dlsym(library, name);
  require_usage(symbol != nullptr, Cause{ErrorCode::malformed, kOption, path}, path,
                " is no plugin of linnet: it exports no ", name,
                "; end its source with LINNET_PLUGIN() { ... } of attention/plugin.h");
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

void load_plugin(const std::string& path) {
  require_usage(exists(path) && !is_directory(path), Cause{ErrorCode::not_found, kOption, path},
                "--plugin: there is no file ", path);
  const auto same = [&path](const Plugin& plugin) {
    std::error_code unknown;  // a file that is gone is no longer the same
    return std::filesystem::equivalent(path, plugin.path, unknown);
  };
  if (std::any_of(plugins().begin(), plugins().end(), same)) return;
  Plugin plugin{std::filesystem::absolute(path).lexically_normal(), hash128_hex_of_file(path), {}};
  void* library = ::dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string problem = library == nullptr ? ::dlerror() : "";
  // A plugin for another ABI may need functions that this linnet lacks; its ABI says why.
  if (library == nullptr) library = ::dlopen(plugin.path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  require_usage(library != nullptr, Cause{ErrorCode::malformed, kOption, path}, kNotLoaded,
                problem);
  const std::string abi = exported<const char*()>(library, path, "linnet_plugin_abi")();
  require_usage(abi == LINNET_PLUGIN_ABI, Cause{ErrorCode::conflict, kOption, path}, "the plugin ",
                path, " was built for ABI ", abi, ", this linnet has ", LINNET_PLUGIN_ABI,
                ": build the plugin again with the headers and the compiler of this linnet");
  require_usage(problem.empty(), Cause{ErrorCode::malformed, kOption, path}, kNotLoaded, problem);
  const size_t before = mechanisms().size();
  try {
    exported<void()>(library, path, "linnet_plugin_register")();
  } catch (const std::exception& error) {
    throw UsageError({ErrorCode::conflict, kOption, path},
                     concat("the plugin ", path, " was refused: ", error.what()));
  }
  for (size_t i = before; i < mechanisms().size(); ++i) {
    plugin.mechanisms.push_back(mechanisms()[i].name);
  }
  require_usage(!plugin.mechanisms.empty(), Cause{ErrorCode::conflict, kOption, path},
                "the plugin ", path,
                " registers no mechanism; call register_mechanism in its LINNET_PLUGIN()");
  plugins().push_back(std::move(plugin));
}

const std::vector<Plugin>& loaded_plugins() {
  return plugins();
}

const Plugin* plugin_of(std::string_view mechanism) {
  for (const Plugin& plugin : plugins()) {
    const auto& names = plugin.mechanisms;
    if (std::find(names.begin(), names.end(), mechanism) != names.end()) return &plugin;
  }
  return nullptr;
}

}  // namespace linnet
