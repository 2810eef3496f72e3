// How many examples the papers' classification tasks are scored on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace linnet {

// Of a task of published.tsv and one of its splits, "validation" or "test"; nothing where the
// number is not fixed (Pathfinder's empty images) or the split is not the papers'.
std::optional<int64_t> published_examples(const std::string& task, const std::string& split);

}  // namespace linnet
