// The nodes of a tree of tokens that follows a text, as tree speculation guesses them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"

namespace linnet {

// A node reads the text, the nodes above it and itself.
struct TreeNodes {
  std::vector<int64_t> parents;  // of earlier nodes; -1: the text
  std::vector<int64_t> depths;   // from 0, of nodes that the text alone is before
  int64_t deepest = -1;

  // Throws Error unless parents[i] < i.
  explicit TreeNodes(std::span<const int64_t> given) : parents(given.begin(), given.end()) {
    const int64_t count = size();
    for (int64_t node = 0; node < count; ++node) {
      const int64_t parent = parents[static_cast<size_t>(node)];
      require(-1 <= parent && parent < node, "node ", node, " of a tree has the parent ", parent);
      depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
      deepest = std::max(deepest, depths.back());
    }
  }

  int64_t size() const { return std::ssize(parents); }
  int64_t parent(int64_t node) const { return parents[static_cast<size_t>(node)]; }
  int64_t depth(int64_t node) const { return depths[static_cast<size_t>(node)]; }
  // From the node without a parent down to this one, itself included.
  std::vector<int64_t> path(int64_t node) const {
    std::vector<int64_t> nodes;
    for (; node >= 0; node = parent(node)) nodes.push_back(node);
    std::reverse(nodes.begin(), nodes.end());
    return nodes;
  }
  // All, each after its parent and before its parent's next child.
  std::vector<int64_t> depth_first() const {
    std::vector<std::vector<int64_t>> children(parents.size() + 1);  // of node i - 1; 0: the text
    for (int64_t node = 0; node < size(); ++node) {
      children[static_cast<size_t>(parent(node) + 1)].push_back(node);
    }
    std::vector<int64_t> order, waiting(children[0].rbegin(), children[0].rend());
    while (!waiting.empty()) {
      const int64_t node = waiting.back();
      waiting.pop_back();
      order.push_back(node);
      const std::vector<int64_t>& below = children[static_cast<size_t>(node) + 1];
      waiting.insert(waiting.end(), below.rbegin(), below.rend());
    }
    return order;
  }
};

}  // namespace linnet
