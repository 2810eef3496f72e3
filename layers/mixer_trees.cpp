// Trees of tokens after a text: each node sees the text, the nodes above it and itself.
#include <algorithm>

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
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

// Rows of x [n,...] by number: runs of one row, and of rows one after the other, are copied at
// once.
Tensor rows_of(const Tensor& x, std::span<const int64_t> numbers) {
  std::vector<Tensor> runs;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    const int64_t first = numbers[begin];
    const auto goes_on = [&](int64_t step) {
      return end < numbers.size() &&
             numbers[end] == first + step * static_cast<int64_t>(end - begin);
    };
    end = begin + 1;
    if (goes_on(0)) {
      while (goes_on(0)) ++end;
      const Shape shape = x.shape().with(0, static_cast<int64_t>(end - begin));
      runs.push_back(expanded(x.rows(first, first + 1), shape));
    } else {
      while (goes_on(1)) ++end;
      runs.push_back(x.rows(first, first + static_cast<int64_t>(end - begin)));
    }
  }
  return concatenate(runs, 0);
}
Variable rows_of(const Variable& x, std::span<const int64_t> numbers) {
  return x.defined() ? Variable(rows_of(x.value(), numbers)) : Variable();
}

// The nodes of one depth, which a device reads as rows of one batch.
struct Level {
  std::vector<int64_t> nodes;
  std::vector<int64_t> parents;  // rows of the level above
  MixerState state;              // after each of them
};

std::vector<Level> levels_of(std::span<const MixerNode> nodes, std::vector<int64_t>& rows) {
  std::vector<Level> levels;
  std::vector<size_t> depths;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int64_t parent = nodes[i].parent;
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
    if (depths[i] == levels.size()) levels.emplace_back();
    Level& level = levels[depths[i]];
    rows.push_back(std::ssize(level.nodes));
    level.nodes.push_back(static_cast<int64_t>(i));
    level.parents.push_back(parent < 0 ? 0 : rows[static_cast<size_t>(parent)]);
  }
  return levels;
}

// A state for each row: that of its parent.
MixerState of_parents(const MixerState& above, std::span<const int64_t> parents, Device device) {
  if (parents.size() == 1 && parents[0] == 0 &&
      (above.empty() || above.begin()->second.size(0) == 1)) {
    return above;
  }
  std::vector<int32_t> numbers(parents.begin(), parents.end());
  const Tensor index = Tensor::from(numbers, {std::ssize(numbers)}, device);
  MixerState state;
  for (const auto& [name, entry] : above) {
    const bool gathers = entry.dtype() == DType::f32 || entry.dtype() == DType::bf16;
    state[name] = gathers ? gather(entry, index) : rows_of(entry, parents);
  }
  return state;
}

// step(level, context, state) reads the nodes of a level, each behind its own state: their outputs
// [n,1,...], and the states after them.
template <typename Step>
TreeMix by_levels(std::span<const MixerNode> nodes, const MixerState& state, Device device,
                  const Step& step) {
  std::vector<int64_t> rows;
  auto levels = std::make_shared<std::vector<Level>>(levels_of(nodes, rows));
  std::vector<Variable> ys;
  std::vector<int64_t> order(nodes.size());
  int64_t read = 0;
  const MixerState* above = &state;
  for (Level& level : *levels) {
    const auto count = std::ssize(level.nodes);
    MixerContext context = nodes[static_cast<size_t>(level.nodes[0])].context;
    context.positions = counted_positions(count, 1, context.place.time_offset, device);
    auto [y, after] = step(level, context, of_parents(*above, level.parents, device));
    ys.push_back(y);
    level.state = std::move(after);
    above = &level.state;
    for (const int64_t node : level.nodes) order[static_cast<size_t>(node)] = read++;
  }
  const Variable y = rows_of(concatenate(ys, 0), order);
  return {y, [levels, rows](std::span<const int64_t> path) {
            const Level& level = (*levels)[path.size() - 1];
            const int64_t row = rows[static_cast<size_t>(path.back())];
            MixerState after;
            for (const auto& [name, entry] : level.state) {
              after[name] = Variable(entry.value().rows(row, row + 1).clone());
            }
            return after;
          }};
}

}  // namespace

TreeMix TokenMixer::forward_tree(const Variable& x, const Tensor&, std::span<MixerNode> nodes,
                                 const MixerState& state, TreeStates) const {
  if (on_cuda(x.value())) {
    const auto step = [&](const Level& level, MixerContext& context, const MixerState& before) {
      const auto node = [&](size_t row) -> MixerNode& {
        return nodes[static_cast<size_t>(level.nodes[row])];
      };
      for (auto& [name, stream] : context.streams) {
        std::vector<Variable> own;
        for (size_t row = 0; row < level.nodes.size(); ++row) {
          own.push_back(node(row).context.streams.at(name));
        }
        stream = concatenate(own, 0);
      }
      MixerResult mixed = forward(rows_of(x, level.nodes), context, before);
      for (const auto& [name, stream] : mixed.streams) {
        for (size_t row = 0; row < level.nodes.size(); ++row) {
          const auto at = static_cast<int64_t>(row);
          node(row).context.streams[name] = slice(stream, 0, at, at + 1);
        }
      }
      return std::pair(mixed.y, std::move(mixed.state));
    };
    return by_levels(nodes, state, x.value().device(), step);
  }
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
  if (on_cuda(input.v.defined() ? input.v.value() : input.x.value())) {
    const Device device = (input.v.defined() ? input.v : input.x).value().device();
    return by_levels(
        nodes, state, device,
        [&](const Level& level, const MixerContext& context, const MixerState& before) {
          const auto rows = [&](const Variable& x) { return rows_of(x, level.nodes); };
          MixResult mixed = attend({rows(input.q), rows(input.k), rows(input.v), rows(input.x), {}},
                                   context, before);
          return std::pair(mixed.y, std::move(mixed.state));
        });
  }
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
