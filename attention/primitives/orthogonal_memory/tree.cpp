#include "attention/primitives/orthogonal_memory/tree.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/orthogonal_memory/plan.h"

namespace linnet {
namespace {

using namespace binding;
using orthogonal_memory_detail::Basis;
using orthogonal_memory_detail::load_bases;
using orthogonal_memory_detail::memory_weights;

constexpr const char* kName = "orthogonal memory of a tree";

// One call: sizes, and the tensors of the result. M memories of r sums.
struct Call {
  const TreeNodes& nodes;
  const OrthogonalMemoryOptions& options;
  int64_t start, H, d, M, r;
  Tensor completed, partial, counts, y, memory_tokens;

  bool inclusive() const { return options.scope == MemoryScope::prefix; }
};

// The state of each node from that of its parent, and into `seen` [N,M,r] the sums that it reads.
// The partial sums hold the nodes' codes before.
template <typename T>
void carry_down(const Call& call, const OrthogonalMemoryCarry& text, T* seen) {
  const int64_t size = call.M * call.r;
  std::vector<T> zeros(static_cast<size_t>(size));
  const int64_t nothing[2] = {0, 0};
  const bool carried = text.completed.defined();
  for (int64_t node = 0; node < call.nodes.size(); ++node) {
    const int64_t parent = call.nodes.parent(node);
    const auto before = [&](const Tensor& made, const Variable& of_text) -> const T* {
      if (parent >= 0) return made.data<T>() + parent * size;
      return carried ? of_text.value().data<T>() : zeros.data();
    };
    const T* running = before(call.completed, text.completed);
    const T* own = call.inclusive() ? zeros.data() : before(call.partial, text.partial);
    const int64_t* counts = parent >= 0 ? call.counts.data<int64_t>() + 2 * parent
                            : carried   ? text.counts.data<int64_t>()
                                        : nothing;
    T* completed = call.completed.data<T>() + node * size;
    T* partial = call.partial.data<T>() + node * size;
    const int64_t position = call.start + call.nodes.depth(node);
    const bool completes = call.inclusive() || (position + 1) % call.options.window == 0;
    for (int64_t l = 0; l < size; ++l) {
      const T sum = own[l] + partial[l];
      seen[node * size + l] = call.inclusive() ? running[l] + sum : running[l];
      completed[l] = completes ? running[l] + sum : running[l];
      partial[l] = completes ? T{0} : sum;
    }
    const int64_t unfinished = (call.inclusive() ? 0 : counts[1]) + 1;
    call.memory_tokens.data<int64_t>()[node] = counts[0] + (call.inclusive() ? 1 : 0);
    int64_t* own_counts = call.counts.data<int64_t>() + 2 * node;
    own_counts[0] = counts[0] + (completes ? unfinished : 0);
    own_counts[1] = completes ? 0 : unfinished;
  }
}

// The reads of one head.
template <typename T>
void read_head(const Call& call, int64_t head, const Basis<T>& basis, const T* q, const T* seen) {
  const int64_t count = call.nodes.size(), padded = basis.padded, row = call.H * call.d;
  chunked::Scratch<T> scratch;
  T* weights = scratch.take(count * padded);
  T* mean = scratch.take(padded);
  std::fill_n(mean, padded, T{0});
  tile_gemm<T>(count, padded, call.d, T{1}, {q + head * call.d, row}, {basis.columns.get(), padded},
               Write::overwrite, weights, padded);
  for (int64_t node = 0; node < count; ++node) {
    const int64_t tokens = call.memory_tokens.data<int64_t>()[node];
    T* own = weights + node * padded;
    if (tokens == 0) {
      std::fill_n(own, padded, T{0});
      continue;
    }
    const T* sum = seen + (node * call.M + (call.M == 1 ? 0 : head)) * call.r;
    const T factor = T{1} / static_cast<T>(tokens);
    for (int64_t l = 0; l < call.r; ++l) mean[l] = sum[l] * factor;
    memory_weights(call.r, padded, static_cast<T>(call.options.scale), mean, own);
    for (int64_t l = 0; l < padded; ++l) own[l] *= mean[l];
  }
  tile_gemm<T>(count, call.d, call.r, T{1}, {weights, padded}, basis.rows, Write::overwrite,
               call.y.data<T>() + head * call.d, row);
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory_tree(const Variable& q, const Variable& f,
                                              const Variable& basis,
                                              const OrthogonalMemoryCarry& carry,
                                              const OrthogonalMemoryContext& context,
                                              const TreeNodes& nodes) {
  const DType dtype = computing_type(q);
  const Tensor queries = converted(q, dtype, kName), codes = converted(f, dtype, kName),
               rows = converted(basis, dtype, kName);
  check_sequence(queries, kName);
  const int64_t count = nodes.size(), H = queries.size(2), d = queries.size(3);
  const bool shared = rows.shape().rank() == 2;
  const int64_t r = rows.size(shared ? 0 : 1), M = shared ? 1 : H;
  check_shape(queries, {count, 1, H, d}, kName, "queries");
  check_shape(codes, {count, 1, H, d}, kName, "codes");
  check_shape(rows, shared ? Shape{r, H * d} : Shape{H, r, d}, kName, "basis");
  require(context.options.scope != MemoryScope::whole && context.options.dropout == 0, kName,
          ": it is defined for causal scopes without dropout");
  OrthogonalMemoryCarry text;
  if (carry.completed.defined()) {
    text = {Variable(converted(carry.completed, dtype, kName)),
            Variable(converted(carry.partial, dtype, kName)), carry.counts};
    check_shape(text.completed.value(), {1, M, r}, kName, "completed");
    check_shape(text.partial.value(), {1, M, r}, kName, "partial");
    check_shape(text.counts, {1, 2}, kName, "counts");
  }
  const int64_t start = context.positions.defined() ? context.positions.data<int32_t>()[0]
                                                    : context.place.time_offset;
  const Call call{nodes,
                  context.options,
                  start,
                  H,
                  d,
                  M,
                  r,
                  Tensor::empty({count, M, r}, dtype),
                  Tensor::empty({count, M, r}, dtype),
                  Tensor::empty({count, 2}, DType::i64),
                  Tensor::empty({count, 1, H, d}, dtype),
                  Tensor::empty({count, 1}, DType::i64)};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    OrthogonalMemoryInputs<T> in;
    in.q = view_of<T>(queries);
    in.basis = rows.data<T>();
    in.rank = r;
    in.basis_head_stride = shared ? d : r * d;
    in.basis_row_stride = shared ? H * d : d;
    const std::vector<Basis<T>> bases = load_bases(in);
    for (int64_t head = 0; head < H; ++head) {
      const Basis<T>& own = bases[static_cast<size_t>(head)];
      tile_gemm<T>(count, r, d, T{1}, {codes.data<T>() + head * d, H * d},
                   {own.columns.get(), own.padded},
                   shared && head > 0 ? Write::accumulate : Write::overwrite,
                   call.partial.data<T>() + (shared ? 0 : head * r), M * r);
    }
    std::vector<T> seen(static_cast<size_t>(count * M * r));
    carry_down(call, text, seen.data());
    const auto work = static_cast<double>(2 * count * H * d * r);
    chunked::run_tasks(H, work, [&](int64_t head) {
      read_head(call, head, bases[static_cast<size_t>(head)], queries.data<T>(), seen.data());
    });
  });
  return {Variable(call.y.to(q.dtype())),
          {Variable(call.completed), Variable(call.partial), call.counts},
          call.memory_tokens};
}

}  // namespace linnet
