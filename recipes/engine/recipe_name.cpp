#include "recipes/engine/recipe_name.h"

#include <algorithm>

#include "core/echo.h"

namespace linnet {
namespace {

constexpr size_t kLongestName = 200;

}  // namespace

bool is_descriptor(std::string_view path) {
  if (path == "/dev/stdin" || path.starts_with("/dev/fd/")) return true;
  return path.starts_with("/proc/") && path.find("/fd/") != std::string_view::npos;
}

bool is_plain_name(std::string_view name) {
  const auto unusable = [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  };
  return !name.empty() && name.size() <= kLongestName && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), unusable);
}

void require_plain_name(const ConfigNode& recipe) {
  const ConfigNode* name = recipe.is_map() ? recipe.find("name") : nullptr;
  if (name == nullptr || !name->is_scalar() || name->raw().empty() || is_plain_name(name->raw())) {
    return;
  }
  throw located_error(name->location(), Cause{ErrorCode::malformed, "name"},
                      "'name' is the name of a folder and must be plain: no '/', not '.' or '..', "
                      "at most ",
                      kLongestName, " bytes; found '", shortened(name->raw(), kLongestName),
                      "'; where a run is written is what --out says");
}

std::string folder_of_point(const std::string& label) {
  std::string folder = label;
  std::replace(folder.begin(), folder.end(), '/', '_');
  return folder;
}

}  // namespace linnet
