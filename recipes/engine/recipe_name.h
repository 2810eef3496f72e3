// The name of a recipe, which its runs' folders have, and those of the points of its sweep.
#pragma once

#include <string>
#include <string_view>

#include "core/config_node.h"

namespace linnet {

// Whether a recipe's path is that of an open file (/dev/stdin, /dev/fd/63 of a shell's <(...)),
// which says neither what the recipe is called nor where it lies.
bool is_descriptor(std::string_view path);

// Whether a folder can have this name inside of another: at most 200 bytes, no slash, no control
// characters, neither "." nor ".." nor empty.
bool is_plain_name(std::string_view name);

// Throws UsageError when the recipe has a name that is not plain. "" is no name.
void require_plain_name(const ConfigNode& recipe);

// The folder of a sweep's point: its label, in which a value may be a path.
std::string folder_of_point(const std::string& label);

}  // namespace linnet
