#include "recipes/engine/recipe_place.h"

#include <typeinfo>

namespace linnet {
namespace {

template <typename E>
[[noreturn]] void rethrow_placed(const Recipe& recipe, const E& error) {
  const std::string place = place_in(recipe, error);
  if (place.empty()) throw;
  throw E({error.code(), error.key(), place}, with_place(place, error.what()));
}

}  // namespace

std::string place_in(const Recipe& recipe, const Error& error) {
  if (!error.place().empty() || error.key().empty() || error.problems().size() > 1) return "";
  const std::string& key = error.key();
  const ConfigNode* section = &recipe.given;
  Location found;
  for (size_t begin = 0; begin <= key.size() && section->is_map();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const ConfigNode* value = section->find(key.substr(begin, end - begin));
    if (value == nullptr) break;
    found = section->location_of(key.substr(begin, end - begin));
    section = value;
    begin = end + 1;
  }
  return found.file == nullptr ? "" : found.text();
}

std::string with_place(const std::string& place, const std::string& what,
                       const std::string& after) {
  const size_t name = place.rfind(": ");
  const bool twice = name != std::string::npos && what.starts_with(place.substr(name + 2));
  return concat(twice ? place.substr(0, name) : place, after, ": ", what);
}

void with_places(const Recipe& recipe, const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    rethrow_placed(recipe, error);
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;  // another one knows more than its text
    rethrow_placed(recipe, error);
  }
}

}  // namespace linnet
