#include "attention/primitives/cudnn_softmax/cuda/softmax_graph.h"

#include <cmath>
#include <limits>

namespace linnet::cuda {
namespace {

// Both graphs begin with the logits. cuDNN recognises them by their operations: which stand there,
// in which order and with which types follows its documented pattern of attention.
class Builder {
 public:
  explicit Builder(const SoftmaxSizes& sizes) : sizes_(sizes) {}

  // [B,T,H,K] in memory, seen as [B,H,T,K].
  GraphTensor sequence() const {
    return {{sizes_.B, sizes_.H, sizes_.T, sizes_.K},
            {sizes_.T * sizes_.H * sizes_.K, sizes_.K, sizes_.H * sizes_.K, 1},
            GraphType::bf16,
            true,
            {}};
  }
  GraphTensor per_row() const {
    return {{sizes_.B, sizes_.H, sizes_.T, 1},
            {sizes_.H * sizes_.T, sizes_.T, 1, 1},
            GraphType::f32,
            false,
            {}};
  }
  GraphTensor per_logit(GraphType type = GraphType::f32) const {
    return {{sizes_.B, sizes_.H, sizes_.T, sizes_.T},
            {sizes_.H * sizes_.T * sizes_.T, sizes_.T * sizes_.T, sizes_.T, 1},
            type,
            false,
            {}};
  }
  static GraphTensor transposed(GraphTensor tensor) {
    std::swap(tensor.sizes[2], tensor.sizes[3]);
    std::swap(tensor.strides[2], tensor.strides[3]);
    return tensor;
  }
  static GraphTensor in_memory(GraphTensor tensor) {
    tensor.in_memory = true;
    return tensor;
  }
  static GraphTensor inside(GraphTensor tensor, GraphType type) {
    tensor.in_memory = false;
    tensor.type = type;
    return tensor;
  }

  int number(float value) {
    return graph_.add({{1, 1, 1, 1}, {1, 1, 1, 1}, GraphType::f32, false, value});
  }
  int scale() {
    return number(
        static_cast<float>(sizes_.scale.value_or(1 / std::sqrt(static_cast<double>(sizes_.K)))));
  }
  int masked(int logits) {
    if (!sizes_.causal) return logits;
    const int row = graph_.apply(GraphKind::row_index, {logits}, per_logit(GraphType::i32));
    const int column = graph_.apply(GraphKind::column_index, {logits}, per_logit(GraphType::i32));
    const int seen =
        graph_.apply(GraphKind::at_least, {row, column}, per_logit(GraphType::boolean));
    const int hidden = number(-std::numeric_limits<float>::infinity());
    return graph_.apply(GraphKind::select, {logits, hidden, seen}, per_logit());
  }
  OperationGraph& graph() { return graph_; }

 private:
  SoftmaxSizes sizes_;
  OperationGraph graph_;
};

}  // namespace

SoftmaxForwardGraph softmax_forward_graph(const SoftmaxSizes& sizes) {
  Builder build(sizes);
  OperationGraph& g = build.graph();
  SoftmaxForwardGraph result;
  result.q = g.add(build.sequence());
  result.k = g.add(Builder::transposed(build.sequence()));
  result.v = g.add(build.sequence());
  int logits = g.apply(GraphKind::product, {result.q, result.k}, build.per_logit());
  logits = g.apply(GraphKind::multiply, {logits, build.scale()}, build.per_logit());
  logits = build.masked(logits);
  const int maximum = g.apply(GraphKind::row_maximum, {logits}, build.per_row());
  const int below = g.apply(GraphKind::subtract, {logits, maximum}, build.per_logit());
  const int weights = g.apply(GraphKind::exponential, {below}, build.per_logit());
  const int sum = g.apply(GraphKind::row_sum, {weights}, build.per_row());
  const int log_sum = g.apply(GraphKind::logarithm, {sum}, build.per_row());
  result.log_sum_exp =
      g.apply(GraphKind::add, {maximum, log_sum}, Builder::in_memory(build.per_row()));
  const int shares = g.apply(GraphKind::divide, {weights, sum}, build.per_logit(GraphType::bf16));
  result.y = g.apply(GraphKind::product, {shares, result.v}, build.sequence());
  result.graph = std::move(g);
  return result;
}

SoftmaxBackwardGraph softmax_backward_graph(const SoftmaxSizes& sizes) {
  Builder build(sizes);
  OperationGraph& g = build.graph();
  const GraphTensor sequence = build.sequence(), logit = build.per_logit();
  const GraphTensor transposed_weights = Builder::transposed(build.per_logit(GraphType::bf16));
  SoftmaxBackwardGraph result;
  result.q = g.add(sequence);
  result.k = g.add(Builder::transposed(sequence));
  result.v = g.add(Builder::transposed(sequence));
  result.y = g.add(sequence);
  result.dy = g.add(sequence);
  result.log_sum_exp = g.add(Builder::in_memory(build.per_row()));
  const int scale = build.scale();
  // y . dy of each row, which the gradient of the softmax's sum subtracts.
  const int products = g.apply(GraphKind::multiply, {result.dy, result.y},
                               Builder::inside(sequence, GraphType::f32));
  const int dots = g.apply(GraphKind::row_sum, {products}, build.per_row());
  result.row_dots =
      g.apply(GraphKind::multiply, {dots, build.number(1)}, Builder::in_memory(build.per_row()));
  // The weights again, and dv.
  int logits = g.apply(GraphKind::product, {result.q, result.k}, logit);
  logits = g.apply(GraphKind::multiply, {logits, scale}, logit);
  logits = g.apply(GraphKind::subtract, {logits, result.log_sum_exp}, logit);
  logits = build.masked(logits);
  const int weights = g.apply(GraphKind::exponential, {logits}, logit);
  const int by_key = g.apply(GraphKind::transposed, {weights}, transposed_weights);
  result.dv = g.apply(GraphKind::product, {by_key, result.dy}, sequence);
  // The gradient of the logits, and dk.
  int d = g.apply(GraphKind::product, {result.dy, result.v}, logit);
  d = g.apply(GraphKind::subtract, {d, result.row_dots}, logit);
  d = g.apply(GraphKind::multiply, {d, weights}, logit);
  d = g.apply(GraphKind::multiply, {d, scale}, logit);
  const int d_by_key = g.apply(GraphKind::transposed, {d}, transposed_weights);
  result.dk = g.apply(GraphKind::product, {d_by_key, result.q}, sequence);
  const int keys =
      g.apply(GraphKind::transposed, {result.k}, Builder::inside(sequence, GraphType::f32));
  if (sizes.deterministic) {
    // Without a place for sums in f32, cuDNN multiplies all of d by the keys at once, which
    // NVIDIA's own interface (cudnn-frontend, is_deterministic_algorithm) asks for in the same way.
    result.dq = g.apply(GraphKind::product, {d, keys}, sequence);
    result.graph = std::move(g);
    return result;
  }
  // dq, which is summed in f32 over blocks of keys.
  GraphTensor sums = Builder::inside(sequence, GraphType::f32);
  sums.strides = {sizes.H * sizes.T * sizes.K, sizes.T * sizes.K, sizes.K, 1};
  result.dq_sums = g.apply(GraphKind::product, {d, keys}, Builder::in_memory(sums));
  result.dq = g.apply(GraphKind::identity, {*result.dq_sums}, sequence);
  result.graph = std::move(g);
  return result;
}

}  // namespace linnet::cuda
