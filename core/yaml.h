// YAML text to value tree and back. A strict subset: one document of maps, lists and scalars.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/config_node.h"

namespace linnet {

// Limits that keep hostile text from costing more than 50 ms or 64 MiB (yaml-cpp reads about 10 MB
// of dense YAML a second, so the size of the file matters).
struct YamlLimits {
  static constexpr size_t kFileBytes = 1 << 18;
  static constexpr size_t kLineBytes = 1 << 15;
  static constexpr size_t kDepth = 64;
  static constexpr size_t kNodes = 20000;
};

// Reads one YAML document; `file_name` names it in locations. Empty text gives a null node. Throws
// UsageError with file:line:column for broken YAML, anything beyond YamlLimits, invalid UTF-8,
// duplicate keys, and what recipes do without: anchors, aliases, tags, merge keys, directives,
// several documents, keys that are not text.
ConfigNode parse_yaml(std::string_view text, const std::string& file_name);

// parse_yaml of a file or pipe (read_file_or_pipe). Throws UsageError when it cannot be read.
ConfigNode load_yaml(const std::string& path);

// Block-style YAML, scalars in quotes where they need them, lists of short scalars on one line;
// parse_yaml reads it back to an equal node. Throws Error for text that is not UTF-8.
std::string to_yaml(const ConfigNode& node);

}  // namespace linnet
