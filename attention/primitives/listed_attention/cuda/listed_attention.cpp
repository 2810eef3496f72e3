// Listed attention on a CUDA device: the way to the plain and the fast kernels.
#include "attention/primitives/listed_attention/cuda/listed_attention.h"

#include "attention/primitives/listed_attention/cuda/fast.h"

namespace linnet::cuda {

void listed_attention_forward(const ListedAttentionTensors& in,
                              const ListedAttentionContext& context, const Tensor& y,
                              const Tensor& log_sum_exp) {
  if (in.path == CallPath::plain) {
    return listed_attention_detail::forward(in, context, y, log_sum_exp);
  }
  using namespace listed_attention_fast;
  forward(call_of(in, context), writes(y), pointer<float>(log_sum_exp));
}

void listed_attention_backward(const ListedAttentionTensors& in,
                               const ListedAttentionContext& context, const Tensor& y,
                               const Tensor& log_sum_exp, const Tensor& dy,
                               const Tensor& dlog_sum_exp, const ListedAttentionTensors& d) {
  if (in.path == CallPath::plain) {
    return listed_attention_detail::backward(in, context, y, log_sum_exp, dy, dlog_sum_exp, d);
  }
  using namespace listed_attention_fast;
  const Tensor readable = aligned(dy);
  backward({call_of(in, context), reads(y), reads(readable), pointer<const float>(log_sum_exp),
            pointer_or_null<const float>(dlog_sum_exp), writes(d.q), writes(d.k), writes(d.v),
            pointer_or_null<float>(d.bias)},
           context.index);
}

}  // namespace linnet::cuda
