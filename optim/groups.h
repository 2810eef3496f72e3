// Parameter groups: which weight decay and learning-rate factor each named parameter gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "optim/optimizer.h"

namespace linnet {

// Where a parameter lies in the flat buffers: elements [begin, end).
struct ParameterSpan {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
};

// One entry of optim.groups: the settings of all parameters whose names match a pattern; absent
// settings stay as they are.
struct GroupRule {
  std::string pattern;
  std::optional<double> weight_decay;
  std::optional<double> lr_scale;
  static void describe(ConfigDescription<GroupRule>& d);
};

// Whether the whole of `text` matches a glob: '*' stands for any characters (dots included), '?'
// for one.
bool glob_matches(std::string_view pattern, std::string_view text);

// Whether a parameter is free of weight decay unless a rule says otherwise: its name ends in
// "bias", one of its parts contains "norm" ("layers.0.norm1.gain"), or is "rates" (exponents of a
// recurrence).
bool exempt_from_weight_decay(std::string_view name);

// The groups for `layout` (sorted, disjoint): the default of each parameter, then every rule in
// order, a later one winning. Neighbours with the same settings become one group. Throws UsageError
// naming the nearest parameters when a pattern matches none.
std::vector<ParameterGroup> make_groups(const std::vector<ParameterSpan>& layout,
                                        double weight_decay, const std::vector<GroupRule>& rules);

// The parts of groups that lie in elements [first, first + elements), counted from `first`.
std::vector<ParameterGroup> groups_within(const std::vector<ParameterGroup>& groups, int64_t first,
                                          int64_t elements);

}  // namespace linnet
