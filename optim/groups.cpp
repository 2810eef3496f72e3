// Parameter groups from glob patterns over parameter names.
#include "optim/groups.h"

#include <algorithm>
#include <numeric>

namespace linnet {
namespace {

// The least count of edits that make `text` match the glob: '*' absorbs anything at no cost.
size_t edits_to_match(std::string_view pattern, std::string_view text) {
  std::vector<size_t> row(text.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char p : pattern) {
    std::vector<size_t> next(row.size());
    next[0] = row[0] + (p == '*' ? 0 : 1);
    for (size_t j = 1; j < row.size(); ++j) {
      if (p == '*') {
        next[j] = std::min(row[j], next[j - 1]);
      } else {
        const size_t replaced = row[j - 1] + (p == '?' || p == text[j - 1] ? 0 : 1);
        next[j] = std::min({replaced, row[j] + 1, next[j - 1] + 1});
      }
    }
    row = std::move(next);
  }
  return row.back();
}

// The three parameter names that a mistyped pattern most likely meant, quoted and separated.
std::string nearest_names(std::string_view pattern, const std::vector<ParameterSpan>& layout) {
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const ParameterSpan& span : layout) {
    ranked.emplace_back(edits_to_match(pattern, span.name), span.name);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, ranked.size()); ++i) {
    text += (i ? ", '" : "'") + ranked[i].second + "'";
  }
  return text;
}

}  // namespace

void GroupRule::describe(ConfigDescription<GroupRule>& d) {
  d.field("pattern", &GroupRule::pattern, "parameter names; * stands for any characters")
      .required();
  d.field("weight_decay", &GroupRule::weight_decay, "replaces optim.weight_decay").at_least(0);
  d.field("lr_scale", &GroupRule::lr_scale, "multiplies the learning rate; 0 freezes").at_least(0);
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  return edits_to_match(pattern, text) == 0;
}

bool exempt_from_weight_decay(std::string_view name) {
  const auto contains = [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  };
  return name.ends_with("bias") || contains("norm") || contains(".rates.");
}

std::vector<ParameterGroup> make_groups(const std::vector<ParameterSpan>& layout,
                                        double weight_decay, const std::vector<GroupRule>& rules) {
  std::vector<ParameterGroup> settings;
  for (const ParameterSpan& span : layout) {
    settings.push_back(
        {span.begin, span.end, exempt_from_weight_decay(span.name) ? 0 : weight_decay, 1});
  }
  for (const GroupRule& rule : rules) {
    bool matched = false;
    for (size_t i = 0; i < layout.size(); ++i) {
      if (!glob_matches(rule.pattern, layout[i].name)) continue;
      matched = true;
      settings[i].weight_decay = rule.weight_decay.value_or(settings[i].weight_decay);
      settings[i].lr_scale = rule.lr_scale.value_or(settings[i].lr_scale);
    }
    require_usage(matched, Cause{ErrorCode::unknown_name, "optim.groups"},
                  "optim.groups: the pattern '", rule.pattern,
                  "' matches no parameter; the nearest names are ",
                  nearest_names(rule.pattern, layout));
  }
  std::vector<ParameterGroup> groups;
  for (const ParameterGroup& one : settings) {
    const bool joins = !groups.empty() && groups.back().end == one.begin &&
                       groups.back().weight_decay == one.weight_decay &&
                       groups.back().lr_scale == one.lr_scale;
    if (joins) {
      groups.back().end = one.end;
    } else {
      groups.push_back(one);
    }
  }
  return groups;
}

std::vector<ParameterGroup> groups_within(const std::vector<ParameterGroup>& groups, int64_t first,
                                          int64_t elements) {
  std::vector<ParameterGroup> parts;
  for (ParameterGroup part : groups) {
    part.begin = std::max<int64_t>(part.begin - first, 0);
    part.end = std::min(part.end - first, elements);
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

}  // namespace linnet
