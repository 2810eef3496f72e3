#include "attention/primitives/linear_attention/tree.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/linear_attention/causal.h"

namespace linnet {
namespace {

using namespace binding;
using namespace linear_attention_detail;

constexpr const char* kName = "linear attention of a tree";

template <typename T>
void tree_outputs(const Causal<T>& call, const TreeNodes& nodes, LinearAttentionState<const T> text,
                  SequenceView<T> y) {
  const Kernel<T>& kernel = call.kernel;
  const int64_t size = kernel.state_size();
  const std::vector<int64_t> order = nodes.depth_first();
  chunked::run_tasks(kernel.key_heads, kernel.work(call.spans), [&](int64_t head) {
    Scratch<T> scratch;
    T* states = scratch.take((nodes.deepest + 2) * size);
    kernel.load_state(text, 0, head, states);
    for (const int64_t node : order) {
      T* own = states + (nodes.depth(node) + 1) * size;
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
                               const LinearAttentionOptions& options, const TreeNodes& nodes,
                               const LinearAttentionSums& state) {
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
    require(x.size(0) == nodes.size() && x.size(1) == 1, kName,
            ": expected a row of one token for each of ", nodes.size(), " nodes, got ", x.shape());
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
    tree_outputs<E>(Causal<E>(options, rows, spans), nodes,
                    {pointer<const E>(memory), pointer<const E>(mass)},
                    {y.data<E>(), 1, y.size(0), y.size(2), y.size(3)});
  });
  return Variable(y.to(inputs.q.dtype()));
}

}  // namespace linnet
