// Trees of tokens after a text: each node sees the text, the nodes above it and itself.
#include <algorithm>

#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "layers/token_mixer.h"

namespace linnet {
namespace {

// State of each node -> state after a path.
std::function<MixerState(std::span<const int64_t>)> state_of_last(
    std::shared_ptr<const std::vector<MixerState>> after) {
  return [after = std::move(after)](std::span<const int64_t> path) {
    return after->at(static_cast<size_t>(path.back()));
  };
}

// The rows of a path as one sequence [1,T,...].
MixInput along(const MixInput& all, std::span<const int64_t> path) {
  const auto rows = [&](const Variable& of_all) {
    if (!of_all.defined()) return Variable();
    std::vector<Variable> parts;
    for (const int64_t node : path) parts.push_back(slice(of_all, 0, node, node + 1));
    return parts.size() == 1 ? parts[0] : concatenate(parts, 1);
  };
  return {rows(all.q), rows(all.k), rows(all.v), rows(all.x), {}};
}

MixerContext along(std::span<const MixerNode> nodes, std::span<const int64_t> path) {
  MixerContext context = nodes[static_cast<size_t>(path[0])].context;
  std::vector<Tensor> positions;
  for (const int64_t node : path) {
    positions.push_back(nodes[static_cast<size_t>(node)].context.positions);
  }
  if (positions.size() > 1) context.positions = concatenate(positions, 1);
  return context;
}

// The tokens of y [1,T,...] to the nodes of a path that have none yet.
void spread(const Variable& y, std::span<const int64_t> path, std::vector<Variable>& ys) {
  for (int64_t t = 0; t < std::ssize(path); ++t) {
    Variable& own = ys[static_cast<size_t>(path[static_cast<size_t>(t)])];
    if (!own.defined()) own = slice(y, 1, t, t + 1);
  }
}

// From a node without a parent to each leaf.
std::vector<std::vector<int64_t>> paths_to_leaves(std::span<const MixerNode> nodes) {
  std::vector<bool> inner(nodes.size());
  for (const MixerNode& node : nodes) {
    if (node.parent >= 0) inner[static_cast<size_t>(node.parent)] = true;
  }
  std::vector<std::vector<int64_t>> paths;
  for (size_t leaf = 0; leaf < nodes.size(); ++leaf) {
    if (inner[leaf]) continue;
    std::vector<int64_t>& path = paths.emplace_back();
    for (auto node = static_cast<int64_t>(leaf); node >= 0;
         node = nodes[static_cast<size_t>(node)].parent) {
      path.push_back(node);
    }
    std::reverse(path.begin(), path.end());
  }
  return paths;
}

}  // namespace

TreeMix TokenMixer::forward_tree(const Variable& x, const Tensor&, std::span<MixerNode> nodes,
                                 const MixerState& state, TreeStates) const {
  std::vector<Variable> ys;
  auto after = std::make_shared<std::vector<MixerState>>();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t parent = nodes[i].parent;
    MixerResult mixed = forward(slice(x, 0, at, at + 1), nodes[i].context,
                                parent < 0 ? state : (*after)[static_cast<size_t>(parent)]);
    for (auto& [name, stream] : mixed.streams) nodes[i].context.streams[name] = std::move(stream);
    after->push_back(std::move(mixed.state));
    ys.push_back(mixed.y);
  }
  return {concatenate(ys, 0), state_of_last(after)};
}

TreeMix TokenMixer::forward_paths(const Variable& x, std::span<const MixerNode> nodes,
                                  const MixerState& state) const {
  const std::vector<MixerNode> kept(nodes.begin(), nodes.end());
  const auto read = [this, x, kept, state](std::span<const int64_t> path) {
    return forward(along({{}, {}, {}, x, {}}, path).x, along(kept, path), state);
  };
  std::vector<Variable> ys(nodes.size());
  for (const std::vector<int64_t>& path : paths_to_leaves(nodes)) {
    spread(read(path).y, path, ys);
  }
  return {concatenate(ys, 0), [read](std::span<const int64_t> path) { return read(path).state; }};
}

TreeMix AttentionMixer::forward_tree(const Variable& x, const Tensor& positions,
                                     std::span<MixerNode> nodes, const MixerState& state,
                                     TreeStates states) const {
  const MixInput all = projected(x, positions, {});
  const bool copied = states == TreeStates::copied || branches_ != nullptr;
  TreeMix mixed =
      copied ? AttentionMixer::mix_tree(all, nodes, state) : mix_tree(all, nodes, state);
  const Variable& y = mixed.y;
  mixed.y =
      linear(reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)}), out_weight_, out_bias_);
  return mixed;
}

TreeMix AttentionMixer::mix_tree(const MixInput& input, std::span<const MixerNode> nodes,
                                 const MixerState& state) const {
  std::vector<Variable> ys;
  auto after = std::make_shared<std::vector<MixerState>>();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto node = static_cast<int64_t>(i);
    const int64_t parent = nodes[i].parent;
    MixResult mixed = attend(along(input, {&node, 1}), nodes[i].context,
                             parent < 0 ? state : (*after)[static_cast<size_t>(parent)]);
    after->push_back(std::move(mixed.state));
    ys.push_back(mixed.y);
  }
  return {concatenate(ys, 0), state_of_last(after)};
}

TreeMix AttentionMixer::mix_paths(const MixInput& input, std::span<const MixerNode> nodes,
                                  const MixerState& state) const {
  const std::vector<std::vector<int64_t>> paths = paths_to_leaves(nodes);
  std::vector<Variable> ys(nodes.size());
  MixResult mixed;
  for (const std::vector<int64_t>& path : paths) {
    mixed = attend(along(input, path), along(nodes, path), state);
    spread(mixed.y, path, ys);
  }
  const auto commit = committed(input, nodes, state, Commit::at_once);
  if (paths.size() > 1) return {concatenate(ys, 0), commit};
  // A chain that is taken whole has been read already.
  return {concatenate(ys, 0), [commit, whole = paths[0].size(),
                               after = std::move(mixed.state)](std::span<const int64_t> path) {
            return path.size() == whole ? after : commit(path);
          }};
}

std::function<MixerState(std::span<const int64_t>)> AttentionMixer::committed(
    const MixInput& input, std::span<const MixerNode> nodes, const MixerState& state,
    Commit commit) const {
  const std::vector<MixerNode> kept(nodes.begin(), nodes.end());
  return [this, input, kept, state, commit](std::span<const int64_t> path) {
    MixerState after = state;
    const size_t step = commit == Commit::at_once ? path.size() : 1;
    for (size_t t = 0; t < path.size(); t += step) {
      const auto part = path.subspan(t, step);
      after = mix(along(input, part), along(kept, part), after).state;
    }
    return after;
  };
}

}  // namespace linnet
