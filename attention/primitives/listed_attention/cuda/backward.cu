// Listed attention, backward: weights are recomputed from the saved log-sum-exp. dq and the
// gradients of logits by queries, dk and dv by keys, so that no two warps add to the same element.
#include "attention/primitives/listed_attention/cuda/problem.h"
#include "core/cuda/for_each.h"
#include "core/sort.h"

namespace linnet::cuda {
namespace listed_attention_detail {

SortedIndex::SortedIndex(const Tensor& index) {
  const Shape rows{index.size(0) * index.size(1), index.size(2) * index.size(3)};
  keys = Tensor::empty(rows, DType::i32, index.device());
  order = Tensor::empty(rows, DType::i32, index.device());
  sort_rows(index.reshape(rows), keys, order);
}

SortedPlaces SortedIndex::places() const {
  return {pointer<int32_t>(keys), pointer<int32_t>(order)};
}

void sum_bias(const Tensor& dlogits, int64_t bias_rows, int64_t bias_heads, float* dbias) {
  const float* from = pointer<float>(dlogits);
  const int64_t all_heads = dlogits.size(1), n = dlogits.size(2) * dlogits.size(3);
  const int64_t rows = bias_rows == 1 ? dlogits.size(0) : 1;
  const int64_t heads = bias_heads == 1 ? all_heads : 1;
  for_each("listed_attention_bias", bias_rows * bias_heads * n, [=] __device__(int64_t i) {
    const int64_t first_row = i / n / bias_heads, first_head = i / n % bias_heads;
    float total = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        total += from[((first_row + row) * all_heads + first_head + head) * n + i % n];
      }
    }
    dbias[i] = total;
  });
}

}  // namespace listed_attention_detail

namespace {

using block_attention_detail::PlainBackward;
using namespace listed_attention_detail;

// dlogits [B,H,Tq,length], zeros before, may be null.
template <typename T>
__global__ void listed_query_gradients(const __grid_constant__ PlainBackward<ListedProblem<T>> p,
                                       float* dlogits) {
  row_gradients(p, dlogits);
}
template <typename T>
__global__ void listed_key_gradients(const __grid_constant__ PlainBackward<ListedProblem<T>> p,
                                     SortedPlaces sorted) {
  column_gradients(p, sorted);
}

template <typename T>
void backward_typed(const PlainBackward<ListedProblem<T>>& p, const Tensor& index,
                    const Tensor& dbias) {
  Tensor dlogits;
  if (dbias.defined()) {
    const Shape shape{p.B, p.H, p.Tq, p.length};
    dlogits = Tensor::zeros(shape, DType::f32, index.device());
  }
  launch(launch_row_gradients("listed_query_gradients", p), listed_query_gradients<T>, p,
         pointer_or_null<float>(dlogits));
  const SortedIndex sorted(index);
  launch(launch_column_gradients("listed_key_gradients", p), listed_key_gradients<T>, p,
         sorted.places());
  if (dbias.defined()) sum_bias(dlogits, p.bias_rows, p.bias_heads, pointer<float>(dbias));
}

}  // namespace

void listed_attention_detail::backward(const ListedAttentionTensors& in,
                                       const ListedAttentionContext& context, const Tensor& y,
                                       const Tensor& log_sum_exp, const Tensor& dy,
                                       const Tensor& dlog_sum_exp,
                                       const ListedAttentionTensors& d) {
  const Tensor shift = Tensor::empty(log_sum_exp.shape(), DType::f32, y.device());
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    backward_typed<T>({problem_of<T>(in, context),
                       {pointer<T>(y)},
                       {pointer<T>(dy)},
                       pointer<float>(log_sum_exp),
                       pointer_or_null<float>(dlog_sum_exp),
                       pointer<float>(shift),
                       {pointer<T>(d.q)},
                       {pointer<T>(d.k)},
                       {pointer<T>(d.v)},
                       {},
                       {}},
                      context.index, d.bias);
  });
}

}  // namespace linnet::cuda
