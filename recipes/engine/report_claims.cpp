#include "recipes/engine/report_claims.h"

#include <algorithm>

#include "core/echo.h"
#include "recipes/engine/without_effect.h"

namespace linnet {
namespace {

// The contents of the data that a run recorded, as text; "" of a run that recorded none.
std::string recorded_data(const RunData& run) {
  if (!run.environment.is_object()) return "";
  const JsonValue* data = run.environment.find("data");
  const JsonValue* prints =
      data != nullptr && data->is_object() ? data->find("fingerprints") : nullptr;
  return prints == nullptr ? "" : prints->dump();
}

bool other_data(const RunData& a, const RunData& b) {
  const std::string left = recorded_data(a), right = recorded_data(b);
  return !left.empty() && !right.empty() && left != right;
}

using Rows = std::vector<const PublishedRow*>;

bool share_a_row(const Rows& a, const Rows& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const auto* row) { return std::count(b.begin(), b.end(), row) > 0; });
}

std::string where(const PublishedConfig& published) {
  return concat(published.table, ", ", published.task,
                published.setting.empty() ? "" : concat(" (", published.setting, ")"));
}

std::string both(const RunData& a, const RunData& b) {
  return concat(shell_word(a.path), " and ", shell_word(b.path));
}

void require_repeat(const RunData& a, const RunData& b) {
  const std::string claim =
      concat(both(a, b), " both claim the row ", b.published->model, " of ", where(*b.published));
  const std::string found = recipe_difference(a, b);
  require_usage(found.empty(), Cause{ErrorCode::conflict, found, b.path}, claim,
                " by different recipes ('", found,
                "' differs); report them apart, or take the section 'published' out of one recipe");
  require_usage(a.seed != b.seed, Cause{ErrorCode::conflict, "seed", b.path}, claim,
                " with the seed ", a.seed, "; report one of them");
}

void require_one_protocol(const RunData& a, const RunData& b) {
  const std::string found = protocol_difference(a, b);
  require_usage(found.empty(), Cause{ErrorCode::conflict, found, b.path}, both(a, b),
                " stand in one table, ", where(*b.published),
                ", and differ in their data or protocol ('", found, "'); report them apart");
}

}  // namespace

std::string recipe_difference(const RunData& a, const RunData& b) {
  const std::string found = difference_with_effect(a.settings, b.settings);
  return found.empty() && other_data(a, b) ? "data" : found;
}

std::string protocol_difference(const RunData& a, const RunData& b) {
  const ConfigNode absent;
  for (const char* section : {"data", "task", "train", "evaluate"}) {
    const ConfigNode* left = a.settings.is_map() ? a.settings.find(section) : nullptr;
    const ConfigNode* right = b.settings.is_map() ? b.settings.find(section) : nullptr;
    const std::string found = difference_with_effect(left == nullptr ? absent : *left,
                                                     right == nullptr ? absent : *right, section);
    if (!found.empty()) return found;
  }
  return other_data(a, b) ? "data" : "";
}

void require_comparable(const std::vector<RunData>& runs) {
  std::vector<Rows> rows;
  for (const RunData& run : runs) rows.push_back(run.published ? rows_of(*run.published) : Rows());
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!runs[j].published || !runs[i].published) continue;
      if (share_a_row(rows[j], rows[i])) require_repeat(runs[j], runs[i]);
      const PublishedConfig &left = *runs[j].published, &right = *runs[i].published;
      if (left.table == right.table && left.task == right.task && left.setting == right.setting)
        require_one_protocol(runs[j], runs[i]);
    }
  }
}

}  // namespace linnet
