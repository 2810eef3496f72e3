#include "recipes/engine/row_claims.h"

#include "recipes/engine/without_effect.h"

namespace linnet {

void RowClaims::add(const Recipe& recipe, const std::string& label) {
  if (!recipe.published) return;
  for (const PublishedRow* row : rows_of(*recipe.published)) {
    const auto& [first, point] = claims_.try_emplace(row, recipe.resolved, label).first->second;
    require_usage(difference_with_effect(first, recipe.resolved).empty(),
                  Cause{ErrorCode::repeated, "published"}, "'published': point ", point,
                  " claims the same row of ", recipe.published->table, ", ", row->task, ", ",
                  row->model, " (", row->metric,
                  "); give one of them published: null, or another model or setting");
  }
}

}  // namespace linnet
