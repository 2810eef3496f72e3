// The one place that chooses between the kernels of listed attention.
#include "attention/primitives/listed_attention/cuda/path.h"

#include "attention/primitives/block_attention/cuda/path.h"
#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/listed_attention/cuda/fast.h"
#include "core/error.h"

namespace linnet::cuda {

std::string why_plain_listed_attention(const ListedAttentionContext& context,
                                       const ListedAttentionTensors& in) {
  if (std::string reason = unsupported_dtype({&in.q}); !reason.empty()) return reason;
  if (context.options.group < listed_attention_fast::kMinQueries) {
    return concat("lists that fewer than ", listed_attention_fast::kMinQueries, " queries share");
  }
  return unsupported_sequences(in.q, in.k, in.v);
}

bool listed_attention_is_fast(const ListedAttentionContext& context,
                              const ListedAttentionTensors& in) {
  return takes_fast_kernels("listed attention", in.q,
                            [&] { return why_plain_listed_attention(context, in); });
}

}  // namespace linnet::cuda
