// Block attention, backward: weights are recomputed from the saved log-sum-exp. dq by queries, dk
// and dv by keys, the bias by entries of its table, so that no two warps add to the same element.
#include "attention/primitives/block_attention/cuda/problem.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

using Backward = PlainBackward<BlockProblem>;

__global__ void block_query_gradients(const __grid_constant__ Backward p) {
  row_gradients(p, nullptr);
}
__global__ void block_key_gradients(const __grid_constant__ Backward p) {
  column_gradients(p);
}

// partial [chunks, H, bias_count]: a warp for each entry sums the gradients of the logits that it
// was added to, over the tokens of a chunk.
__global__ void block_bias_gradients(const __grid_constant__ Backward p, int64_t chunk,
                                     float* partial) {
  const int64_t item = global_warp(), tokens = p.B * p.Tq, entries = p.H * p.bias_count;
  if (item >= (tokens + chunk - 1) / chunk * entries) return;
  const int64_t h = item % entries / p.bias_count;
  const int64_t distance = item % p.bias_count - p.bias_origin;
  const int64_t begin = item / entries * chunk, end = min(begin + chunk, tokens);
  float total = 0;
  for (int64_t n = begin + warp_lane(); n < end; n += kLanes) {
    const int64_t b = n / p.Tq, t = n % p.Tq;
    auto row = p.row_without_draws(b, t, h);
    const int64_t u = row.segment.past + row.r + distance;
    if (u < row.begin || u >= row.end || !row.sees(u)) continue;
    row.draws = p.draws(b, h);  // tokens without such a key need none
    const int64_t number = p.query(b, t, h);
    total += pair_of(p, row, u, dot(p.q.from(number * p.K), row.key(u), p.K),
                     dot(p.dy.from(number * p.V), row.value(u), p.V), p.log_sum_exp[number],
                     p.shift[number])
                 .dlogit;
  }
  total = warp_sum(total);
  if (warp_lane() == 0) partial[item] = total;
}

void block_bias_gradient(const Backward& p, const Tensor& dbias) {
  // At most 64 chunks: enough to fill a GPU, memory that does not depend on the number of tokens.
  const int64_t tokens = p.B * p.Tq, count = p.bias_count, heads = p.H;
  const int64_t chunk = std::max<int64_t>(64, (tokens + 63) / 64);
  const int64_t chunks = (tokens + chunk - 1) / chunk;
  const Tensor sums = Tensor::empty({chunks, heads, count}, DType::f32, dbias.device());
  launch(warps("block_bias_gradients", chunks * heads * count, 0), block_bias_gradients, p, chunk,
         pointer<float>(sums));
  sum_bias_partials(p, sums, pointer<float>(dbias));
}

}  // namespace

void block_attention_detail::sum_bias_partials(const BlockProblem& p, const Tensor& partial,
                                               float* dbias) {
  const int64_t chunks = partial.size(0), heads = p.H, count = p.bias_count;
  const float* from = pointer<float>(partial);
  const int64_t shared_by = p.bias_heads == 1 ? heads : 1;
  for_each("block_attention", p.bias_heads * count, [=] __device__(int64_t i) {
    float total = 0;
    for (int64_t n = 0; n < chunks * shared_by; ++n) {
      total += from[n / shared_by * heads * count + n % shared_by * count + i];
    }
    dbias[i] = total;
  });
}

void block_attention_detail::backward(const BlockAttentionTensors& in,
                                      const BlockAttentionContext& context, const Tensor& y,
                                      const Tensor& log_sum_exp, const Tensor& dy,
                                      const BlockAttentionTensors& gradients) {
  const Tensor shift = Tensor::empty(log_sum_exp.shape(), DType::f32, y.device());
  const Backward p{problem_of(in, context),
                   stored_values(y),
                   stored_values(dy),
                   pointer<float>(log_sum_exp),
                   nullptr,
                   pointer<float>(shift),
                   stored_results(gradients.q),
                   stored_results(gradients.k),
                   stored_results(gradients.v),
                   stored_results(gradients.past_k),
                   stored_results(gradients.past_v)};
  launch(launch_row_gradients("block_query_gradients", p), block_query_gradients, p);
  launch(launch_column_gradients("block_key_gradients", p), block_key_gradients, p);
  if (gradients.bias.defined()) block_bias_gradient(p, gradients.bias);
}

}  // namespace linnet::cuda
