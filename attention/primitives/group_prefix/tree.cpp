#include "attention/primitives/group_prefix/tree.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/group_prefix/group_scan.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "group prefix of a tree";

// One call's tensors: nodes in the computing type, sums [1,H,K,V] (zeros at the beginning).
struct Call {
  GroupPrefixOptions options;
  int64_t position;  // of the first node
  Tensor k, v, completed, all;
  int64_t H, K, V;

  Call(const Variable& keys, const Variable& values, const GroupPrefixOptions& options,
       int64_t position, const GroupPrefixState& state)
      : options(options), position(position) {
    require(!options.whole, kName, ": it is defined over earlier groups");
    const DType dtype = computing_type(keys);
    k = converted(keys, dtype, kName);
    v = converted(values, dtype, kName);
    check_sequence(k, kName);
    check_sequence(v, kName);
    H = k.size(2);
    K = k.size(3);
    V = v.size(3);
    check_shape(k, {k.size(0), 1, H, K}, kName, "keys");
    check_shape(v, {k.size(0), 1, H, V}, kName, "values");
    const auto sums = [&](const Variable& x) {
      const Shape shape{1, H, K, V};
      if (!x.defined()) return Tensor::zeros(shape, dtype);
      check_shape(x.value(), shape, kName, "sums");
      return converted(x, dtype, kName);
    };
    completed = sums(state.completed);
    all = sums(state.all);
  }
  bool begins_group(int64_t depth) const { return (position + depth) % options.group == 0; }
  // The factor of a query at that depth.
  double weight(int64_t depth) const {
    GroupScan rule;
    rule.group = options.group;
    rule.mean = options.mean;
    rule.scale = options.scale;
    const auto at = static_cast<int32_t>(position + depth);
    rule.positions = &at;
    return rule.weight(0);
  }
  // sum += k v^T of a node's head.
  template <typename T>
  void add(int64_t node, int64_t head, T* sum) const {
    const int64_t row = node * H + head;
    tile_gemm<T>(K, V, 1, T{1}, {k.data<T>() + row * K, K, true}, {v.data<T>() + row * V, V},
                 Write::accumulate, sum, V);
  }
};

// What the nodes of one head read: sums of the text, or copies of them with nodes added.
template <typename T>
class HeadReads {
 public:
  HeadReads(const Call& call, const TreeNodes& nodes, int64_t head)
      : call_(call), nodes_(nodes), head_(head) {
    const int64_t size = call.K * call.V;
    const T *completed = call.completed.data<T>() + head * size,
            *all = call.all.data<T>() + head * size;
    for (int64_t node = 0; node < nodes.size(); ++node) {
      const int64_t parent = nodes.parent(node);
      if (!call.begins_group(nodes.depth(node))) {
        sums_.push_back(parent < 0 ? completed : sums_[static_cast<size_t>(parent)]);
      } else {
        sums_.push_back(parent < 0 ? all : with_path(all, parent));
      }
    }
  }

  void read(const Tensor& q, const Tensor& y) const {
    const int64_t count = nodes_.size(), K = call_.K, V = call_.V, H = call_.H;
    chunked::Scratch<T> scratch;
    T *probes = scratch.take(count * K), *outputs = scratch.take(count * V);
    std::vector<bool> done(static_cast<size_t>(count));
    for (int64_t first = 0; first < count; ++first) {
      if (done[static_cast<size_t>(first)]) continue;
      const T* sum = sums_[static_cast<size_t>(first)];
      std::vector<int64_t> readers;
      for (int64_t node = first; node < count; ++node) {
        if (sums_[static_cast<size_t>(node)] != sum) continue;
        done[static_cast<size_t>(node)] = true;
        const T weight = static_cast<T>(call_.weight(nodes_.depth(node)));
        const T* from = q.data<T>() + (node * H + head_) * K;
        T* to = probes + std::ssize(readers) * K;
        for (int64_t c = 0; c < K; ++c) to[c] = weight * from[c];
        readers.push_back(node);
      }
      tile_gemm<T>(std::ssize(readers), V, K, T{1}, {probes, K}, {sum, V}, Write::overwrite,
                   outputs, V);
      for (int64_t i = 0; i < std::ssize(readers); ++i) {
        std::copy_n(outputs + i * V, V,
                    y.data<T>() + (readers[static_cast<size_t>(i)] * H + head_) * V);
      }
    }
  }

 private:
  // All tokens of the text and the nodes down to this one; siblings below it share the sums.
  const T* with_path(const T* all, int64_t node) {
    for (const auto& [last, sums] : made_) {
      if (last == node) return sums.data();
    }
    std::vector<T> sums(all, all + call_.K * call_.V);
    for (const int64_t each : nodes_.path(node)) call_.add(each, head_, sums.data());
    return made_.emplace_back(node, std::move(sums)).second.data();
  }

  const Call& call_;
  const TreeNodes& nodes_;
  int64_t head_;
  std::vector<const T*> sums_;  // of each node
  std::vector<std::pair<int64_t, std::vector<T>>> made_;
};

}  // namespace

Variable group_prefix_tree(const Variable& q, const Variable& k, const Variable& v,
                           const GroupPrefixOptions& options, int64_t position,
                           const TreeNodes& nodes, const GroupPrefixState& state) {
  const Call call(k, v, options, position, state);
  const Tensor queries = converted(q, call.k.dtype(), kName);
  check_shape(queries, {nodes.size(), 1, call.H, call.K}, kName, "queries");
  check_shape(call.k, queries.shape(), kName, "keys");
  const Tensor y = Tensor::empty({nodes.size(), 1, call.H, call.V}, call.k.dtype());
  const auto work = static_cast<double>(y.elements() * call.K);
  dispatch(y.dtype(), [&](auto zero) {
    chunked::run_tasks(call.H, work, [&](int64_t head) {
      HeadReads<decltype(zero)>(call, nodes, head).read(queries, y);
    });
  });
  return Variable(y.to(q.dtype()));
}

GroupPrefixState group_prefix_after(const Variable& k, const Variable& v,
                                    const GroupPrefixOptions& options, int64_t position,
                                    std::span<const int64_t> path, const GroupPrefixState& state) {
  const Call call(k, v, options, position, state);
  Tensor completed = call.completed;
  const Tensor all = call.all.clone();
  for (int64_t depth = 0; depth < std::ssize(path); ++depth) {
    if (call.begins_group(depth)) completed = all.clone();
    dispatch(all.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t head = 0; head < call.H; ++head) {
        call.add(path[static_cast<size_t>(depth)], head, all.data<T>() + head * call.K * call.V);
      }
    });
  }
  return {Variable(completed), Variable(all)};
}

}  // namespace linnet
