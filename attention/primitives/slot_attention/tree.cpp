#include "attention/primitives/slot_attention/tree.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/slot_attention/head_splits.h"

namespace linnet {
namespace {

using namespace binding;
using namespace slot_attention_detail;

constexpr const char* kName = "slot attention of a tree";

template <typename T>
void walk(const Kernel<T>& kernel, const TreeNodes& nodes, SlotAttentionState<const T> text,
          SequenceView<T> o) {
  const std::vector<int64_t> order = nodes.depth_first();
  std::vector<bool> inner(static_cast<size_t>(nodes.size()));
  for (const int64_t parent : nodes.parents) {
    if (parent >= 0) inner[static_cast<size_t>(parent)] = true;
  }
  const double work = kernel.work({{0, 0, nodes.size(), false, false, 0}});
  chunked::run_tasks(kernel.H, work, [&](int64_t head) {
    chunked::Scratch<T> scratch;
    const int64_t size = kernel.matrix_size();
    T* matrices = scratch.take((nodes.deepest + 2) * size);
    std::vector<Memory<T>> memories(static_cast<size_t>(nodes.deepest + 2));  // by depth + 1
    for (size_t depth = 0; depth < memories.size(); ++depth) {
      memories[depth].matrix = matrices + static_cast<int64_t>(depth) * size;
    }
    kernel.load_memory(text, 0, head, scratch.take(kernel.transposed_size()), memories[0]);
    for (const int64_t node : order) {
      const auto depth = static_cast<size_t>(nodes.depth(node));
      const Memory<T>& above = memories[depth];
      Memory<T>& own = memories[depth + 1];
      std::copy_n(above.matrix, size, own.matrix);
      own.mass = above.mass;
      forward_split(kernel, {0, head, node, node + 1}, inner[static_cast<size_t>(node)], own,
                    scratch.nested(), o, {});
    }
  });
}

}  // namespace

Variable slot_attention_tree(const SlotAttentionVariables& inputs,
                             const SlotAttentionContext& context, const TreeNodes& nodes,
                             const SlotMemory& state) {
  require(!context.write_time && context.options.dropout == 0, kName,
          ": it is defined for weights that are divided when they are read, without dropout");
  const DType dtype = computing_type(inputs.q);
  const Tensor q = converted(inputs.q, dtype, kName), k = converted(inputs.k, dtype, kName),
               v = converted(inputs.v, dtype, kName),
               logits = converted(inputs.logits, dtype, kName);
  for (const Tensor* x : {&q, &k, &v, &logits}) {
    check_sequence(*x, kName);
    require(x->size(0) == nodes.size() && x->size(1) == 1, kName,
            ": expected a row of one token for each of ", nodes.size(), " nodes, got ", x->shape());
  }
  const int64_t H = q.size(2), N = logits.size(3), K = k.size(3), V = v.size(3);
  const Tensor keys = converted(state.keys, dtype, kName),
               values = converted(state.values, dtype, kName),
               mass = converted(state.mass, DType::f64, kName);
  check_shape(keys, {1, H, N, K}, kName, "keys of the memory");
  check_shape(values, {1, H, N, V}, kName, "values of the memory");
  check_shape(mass, {1, H, N}, kName, "mass of the memory");
  const Tensor o = Tensor::empty({nodes.size(), 1, H, V}, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    // The rows of the tree as the tokens of one sequence.
    const auto sequence = [&](const Tensor& x) {
      return SequenceView<T>(x.data<T>(), 1, x.size(0), x.size(2), x.size(3));
    };
    SlotAttentionInputs<T> rows;
    rows.q = sequence(q);
    rows.k = sequence(k);
    rows.v = sequence(v);
    rows.logits = sequence(logits);
    walk<T>(Kernel<T>(context.options, rows, H, N, K, V), nodes,
            {pointer<T>(keys), pointer<T>(values), pointer<double>(mass)}, sequence(o));
  });
  return Variable(o.to(inputs.q.dtype()));
}

}  // namespace linnet
