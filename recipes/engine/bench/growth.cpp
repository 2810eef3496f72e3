#include "recipes/engine/bench/growth.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace linnet {
namespace {

// The slope of the least-squares line through the logarithms.
double exponent_of(const std::vector<const OperationBench*>& points,
                   const std::function<double(const OperationBench&)>& figure) {
  const auto count = static_cast<double>(points.size());
  double x_mean = 0, y_mean = 0, xx = 0, xy = 0;
  for (const OperationBench* point : points) {
    x_mean += std::log(static_cast<double>(point->length)) / count;
    y_mean += std::log(figure(*point)) / count;
  }
  for (const OperationBench* point : points) {
    const double x = std::log(static_cast<double>(point->length)) - x_mean;
    xx += x * x;
    xy += x * (std::log(figure(*point)) - y_mean);
  }
  return xy / xx;
}

}  // namespace

std::vector<AttentionGrowth> attention_growth(const std::vector<OperationBench>& points) {
  std::map<std::string, std::vector<const OperationBench*>> by_mechanism;
  std::vector<std::string> order;
  for (const OperationBench& point : points) {
    if (by_mechanism[point.mechanism].empty()) order.push_back(point.mechanism);
    by_mechanism[point.mechanism].push_back(&point);
  }
  std::vector<AttentionGrowth> growth;
  for (const std::string& name : order) {
    const std::vector<const OperationBench*>& own = by_mechanism[name];
    const bool grows = std::any_of(own.begin(), own.end(), [&](const OperationBench* point) {
      return point->length != own.front()->length;
    });
    if (!grows) continue;
    AttentionGrowth& entry = growth.emplace_back();
    entry.mechanism = name;
    entry.form = own.front()->form;
    entry.forward = exponent_of(own, [](const OperationBench& p) { return p.forward.least; });
    entry.forward_backward =
        exponent_of(own, [](const OperationBench& p) { return p.forward_backward.least; });
    entry.memory =
        exponent_of(own, [](const OperationBench& p) { return static_cast<double>(p.peak_bytes); });
    entry.stated = own.front()->growth;
    entry.declared = exponent_of(own, [&](const OperationBench& p) {
      return entry.stated.at(static_cast<double>(p.length));
    });
  }
  return growth;
}

void require_growth(const std::vector<AttentionGrowth>& growth, double limit) {
  std::string faster;
  for (const AttentionGrowth& each : growth) {
    if (each.stated.power != 1) continue;
    const double allowed = each.declared + (limit - 1);
    if (each.forward <= allowed && each.forward_backward <= allowed) continue;
    faster += concat(faster.empty() ? "" : ", ", each.mechanism);
    if (each.stated.logarithm) faster += concat(" (T ln T: than to the ", allowed, ")");
  }
  require(faster.empty(),
          "these declare linear work, but take time that grows faster than T to the ", limit, ": ",
          faster);
}

}  // namespace linnet
