// For tests: what an error is about, apart from its sentence. Sentences of the program are under
// watch in tests/tools/messages/.
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include "core/error.h"

namespace linnet::test {

inline std::string_view name_of(ErrorCode code) {
  constexpr std::string_view kNames[] = {"general",    "unknown_key",  "missing_key",  "repeated",
                                         "wrong_type", "out_of_range", "unknown_name", "conflict",
                                         "malformed",  "not_found",    "system"};
  static_assert(std::size(kNames) == static_cast<size_t>(ErrorCode::system) + 1);
  return kNames[static_cast<size_t>(code)];
}

// Code, key and place of each problem, a line each: "out_of_range optim.lr at recipe.yaml:3:7",
// without the key or the place that a problem does not have. `folder` is left out of places.
inline std::string causes_of(const Error& error, const std::string& folder = "") {
  std::string lines;
  for (const Error::Problem& problem : error.problems()) {
    std::string place = problem.place;
    for (size_t at; !folder.empty() && (at = place.find(folder + "/")) != std::string::npos;) {
      place.erase(at, folder.size() + 1);
    }
    lines +=
        concat(lines.empty() ? "" : "\n", name_of(problem.code), problem.key.empty() ? "" : " ",
               problem.key, place.empty() ? "" : " at ", place);
  }
  return lines;
}

// The same of the E that `body` throws; "nothing thrown" when it throws none.
template <typename E = Error, typename Body>
std::string causes_of(const Body& body, const std::string& folder = "") {
  try {
    body();
  } catch (const E& error) {
    return causes_of(static_cast<const Error&>(error), folder);
  }
  return "nothing thrown";
}

}  // namespace linnet::test
