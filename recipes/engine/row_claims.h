// Which points of a sweep measure which published rows.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "recipes/engine/recipe.h"

namespace linnet {

// The published rows that points measure, each of them one recipe, whatever has no effect on it.
class RowClaims {
 public:
  // Throws UsageError when another recipe, at the point that it names, has a row of this one.
  void add(const Recipe& recipe, const std::string& label);

 private:
  std::map<const PublishedRow*, std::pair<ConfigNode, std::string>> claims_;
};

}  // namespace linnet
