#include "attention/primitives/slot_attention/tree.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/slot_attention/head_splits.h"

namespace linnet {
namespace {

using namespace binding;
using namespace slot_attention_detail;

constexpr const char* kName = "slot attention of a tree";

// The rows of a tree as the tokens of one sequence.
template <typename T>
SequenceView<T> as_sequence(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.data<std::remove_const_t<T>>(), 1, x.size(0), x.size(2), x.size(3)};
}

// `used`, where given: the mass [N,H,slots] that the memory of each node's children has instead of
// its own.
template <typename T>
void walk(const Kernel<T>& kernel, const TreeNodes& nodes, SlotAttentionState<const T> text,
          const double* used, SequenceView<T> o) {
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
      const int64_t parent = nodes.parent(node);
      if (used != nullptr && parent >= 0) {
        std::copy_n(used + (parent * kernel.H + head) * kernel.N, kernel.N, own.mass.data());
      }
      forward_split(kernel, {0, head, node, node + 1}, inner[static_cast<size_t>(node)], own,
                    scratch.nested(), o, {});
    }
  });
}

// Weights [N,1,H,slots] of nodes that are divided when they are written, and the normalizer
// [N,H,slots] after each.
struct Written {
  Tensor weights, mass;
};

Written write_weights(const SlotAttentionOptions& options, const Variable& logits,
                      const Variable& mass, const TreeNodes& nodes) {
  const DType dtype = computing_type(logits);
  const Tensor from = converted(logits, dtype, kName), text = converted(mass, DType::f64, kName);
  check_sequence(from, kName);
  require(from.size(0) == nodes.size() && from.size(1) == 1, kName, ": expected logits of ",
          nodes.size(), " nodes, got ", from.shape());
  const int64_t H = from.size(2), N = from.size(3);
  check_shape(text, {1, H, N}, kName, "mass of the memory");
  const Written out{Tensor::empty(from.shape(), dtype),
                    Tensor::empty({nodes.size(), H, N}, DType::f64)};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t node = 0; node < nodes.size(); ++node) {
      const int64_t parent = nodes.parent(node);
      const double* before =
          parent < 0 ? pointer<double>(text) : out.mass.data<double>() + parent * H * N;
      const auto row = [&](const Tensor& x) {
        return SequenceView<T>(x.data<T>() + node * H * N, 1, 1, H, N);
      };
      slot_write_weights_forward<T>(options, row(from), nullptr, {{0, 0, 1, true, true, 0}}, before,
                                    out.mass.data<double>() + node * H * N, row(out.weights));
    }
  });
  return out;
}

// `used` as in walk().
Variable tree_of_sums(const SlotAttentionVariables& inputs, const SlotAttentionContext& context,
                      const TreeNodes& nodes, const SlotMemory& state, const Tensor& used) {
  const DType dtype = computing_type(inputs.q);
  const Tensor q = converted(inputs.q, dtype, kName), k = converted(inputs.k, dtype, kName),
               v = converted(inputs.v, dtype, kName),
               logits = converted(inputs.logits, dtype, kName),
               value_logits = converted(inputs.value_logits, dtype, kName);
  for (const Tensor* x : {&q, &k, &v, &logits, &value_logits}) {
    check_sequence(*x, kName);
    require(!x->defined() || (x->size(0) == nodes.size() && x->size(1) == 1), kName,
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
    SlotAttentionInputs<T> rows;
    rows.q = as_sequence<const T>(q);
    rows.k = as_sequence<const T>(k);
    rows.v = as_sequence<const T>(v);
    rows.logits = as_sequence<const T>(logits);
    rows.value_logits = as_sequence<const T>(value_logits);
    walk<T>(Kernel<T>(context.options, rows, H, N, K, V), nodes,
            {pointer<T>(keys), pointer<T>(values), pointer<double>(mass)}, pointer<double>(used),
            as_sequence<T>(o));
  });
  return Variable(o.to(inputs.q.dtype()));
}

}  // namespace

Variable slot_attention_tree(const SlotAttentionVariables& inputs,
                             const SlotAttentionContext& context, const TreeNodes& nodes,
                             const SlotMemory& state) {
  require(context.options.dropout == 0, kName, ": it is defined without dropout");
  if (!context.write_time) return tree_of_sums(inputs, context, nodes, state, {});
  // As slot_attention_causal() does it: weights are divided, then summed as they are.
  const Written written = write_weights(context.options, inputs.logits, state.mass, nodes);
  SlotAttentionVariables given = inputs;
  given.logits = Variable(written.weights);
  if (inputs.value_logits.defined()) {
    given.value_logits = Variable(
        write_weights(context.options, inputs.value_logits, state.value_mass, nodes).weights);
  }
  SlotAttentionContext sums;
  sums.options = context.options;
  sums.options.control = SlotControl::given;
  sums.options.normalizer = SlotNormalizer::none;
  if (!context.accumulate) {
    // Nodes that nothing is before: none reads what another wrote.
    const std::vector<int64_t> alone(static_cast<size_t>(nodes.size()), -1);
    return tree_of_sums(given, sums, TreeNodes(alone), {}, {});
  }
  SlotMemory before;
  if (state.mass.defined()) {
    before = {state.keys, state.values, Variable(used_slots(state.mass.value(), context.options))};
  }
  return tree_of_sums(given, sums, nodes, before, used_slots(written.mass, context.options));
}

}  // namespace linnet
