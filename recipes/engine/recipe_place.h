// Where a recipe says what an error is about.
#pragma once

#include <functional>
#include <string>

#include "recipes/engine/recipe.h"

namespace linnet {

// "recipe.yaml:12:3" of the key that the error is about, or of the section that lacks it; "" for an
// error that has a place, for keys that no recipe has, and for a recipe that no file holds.
std::string place_in(const Recipe& recipe, const Error& error);

// "PLACE: what", with `after` behind the place. The key, with which an override's place ends and
// many sentences begin, comes once.
std::string with_place(const std::string& place, const std::string& what,
                       const std::string& after = "");

// Runs `body`. Its UsageErrors, and its other Errors, begin with the place of their key.
void with_places(const Recipe& recipe, const std::function<void()>& body);

}  // namespace linnet
