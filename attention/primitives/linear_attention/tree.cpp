#include "attention/primitives/linear_attention/tree.h"

#include <algorithm>
#include <vector>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/linear_attention/causal.h"

namespace linnet {
namespace {

using namespace binding;
using namespace linear_attention_detail;

constexpr const char* kName = "linear attention of a tree";

// Nodes after their parents, each before its parent's next child; and their depths, from 1.
struct Walk {
  std::vector<int64_t> order, depths;
  int64_t deepest = 0;
};

Walk depth_first(std::span<const int64_t> parents) {
  Walk walk;
  const auto count = static_cast<int64_t>(parents.size());
  std::vector<std::vector<int64_t>> children(parents.size() + 1);  // of node i - 1; 0: the text
  for (int64_t node = 0; node < count; ++node) {
    const auto parent = static_cast<size_t>(parents[static_cast<size_t>(node)] + 1);
    children[parent].push_back(node);
    walk.depths.push_back(parent == 0 ? 1 : walk.depths[parent - 1] + 1);
    walk.deepest = std::max(walk.deepest, walk.depths.back());
  }
  std::vector<int64_t> waiting(children[0].rbegin(), children[0].rend());
  while (!waiting.empty()) {
    const int64_t node = waiting.back();
    waiting.pop_back();
    walk.order.push_back(node);
    const std::vector<int64_t>& below = children[static_cast<size_t>(node) + 1];
    waiting.insert(waiting.end(), below.rbegin(), below.rend());
  }
  return walk;
}

template <typename T>
void tree_outputs(const Causal<T>& call, const Walk& walk, LinearAttentionState<const T> text,
                  SequenceView<T> y) {
  const Kernel<T>& kernel = call.kernel;
  const int64_t size = kernel.state_size();
  chunked::run_tasks(kernel.key_heads, kernel.work(call.spans), [&](int64_t head) {
    Scratch<T> scratch;
    T* states = scratch.take((walk.deepest + 1) * size);
    kernel.load_state(text, 0, head, states);
    for (const int64_t node : walk.order) {
      T* own = states + walk.depths[static_cast<size_t>(node)] * size;
      std::copy_n(own - size, size, own);
      Split split;
      split.begin = node;
      split.end = node + 1;
      scan_outputs<T>(call, split, head, own, scratch.nested(), y, nullptr, nullptr);
    }
  });
}

// The rows of a tree as the tokens of one sequence.
template <typename T>
SequenceView<const T> as_sequence(const Tensor& x) {
  return {x.data<T>(), 1, x.size(0), x.size(2), x.size(3)};
}

}  // namespace

Variable linear_attention_tree(const LinearAttentionVariables& inputs,
                               const LinearAttentionOptions& options,
                               std::span<const int64_t> parents, const LinearAttentionSums& state) {
  require(!inputs.log_decay.defined() && !inputs.query_proportions.defined(), kName,
          ": decays and proportions have no walk");
  if (on_cuda(inputs.q.value()) || inputs.q.size(2) != inputs.k.size(2)) return {};
  const DType dtype = computing_type(inputs.q);
  const Tensor q = converted(inputs.q, dtype, kName), k = converted(inputs.k, dtype, kName),
               v = converted(inputs.v, dtype, kName);
  const Tensor memory = converted(state.memory, dtype, kName),
               mass = converted(state.mass, dtype, kName);
  for (const Tensor& x : {q, k, v}) {
    check_sequence(x, kName);
    require(x.size(0) == static_cast<int64_t>(parents.size()) && x.size(1) == 1, kName,
            ": expected a row of one token for each of ", parents.size(), " nodes, got ",
            x.shape());
  }
  const Shape expected{1, k.size(2), k.size(3), v.size(3)};
  require(!memory.defined() || (memory.shape() == expected && mass.defined()), kName,
          ": expected a state ", expected, " with its mass");
  const Tensor y = Tensor::empty({q.size(0), 1, q.size(2), v.size(3)}, dtype);
  const std::vector<Span> spans{{0, 0, q.size(0), false, false, 0}};
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    LinearAttentionInputs<E> rows;
    rows.q = as_sequence<E>(q);
    rows.k = as_sequence<E>(k);
    rows.v = as_sequence<E>(v);
    tree_outputs<E>(Causal<E>(options, rows, spans), depth_first(parents),
                    {pointer<const E>(memory), pointer<const E>(mass)},
                    {y.data<E>(), 1, y.size(0), y.size(2), y.size(3)});
  });
  return Variable(y.to(inputs.q.dtype()));
}

}  // namespace linnet
