// The one place that chooses between the kernels of slot attention.
#include "attention/primitives/slot_attention/cuda/path.h"

#include <initializer_list>
#include <string>

#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/slot_attention/cuda/fast.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

// For a call that reads, writes or does both.
struct Sizes {
  int64_t tokens, slots, keys, values;
  explicit Sizes(const SlotAttentionTensors& in)
      : tokens((in.q.defined() ? in.q : in.k).size(1)),
        slots(in.logits.defined() ? in.logits.size(3) : in.keys.size(2)),
        keys((in.q.defined() ? in.q : in.k).size(3)),
        values((in.v.defined() ? in.v : in.values).size(3)) {}
};

}  // namespace

std::string why_plain_slot_attention(const SlotAttentionContext& context,
                                     const SlotAttentionTensors& in) {
  const std::initializer_list<const Tensor*> sequences{&in.q, &in.k, &in.v, &in.logits};
  if (std::string reason = unsupported_dtype(sequences); !reason.empty()) return reason;
  const SlotAttentionOptions& options = context.options;
  const bool given = options.control == SlotControl::given;
  if (!given && options.control != SlotControl::exp) {
    return "weights that are a sigmoid or relu of logits";
  }
  if (in.value_logits.defined()) return "values with weights of their own";
  if (!(options.scale > 0)) return "a scale of 0 or less";
  const Sizes sizes(in);
  const bool only_written = !in.q.defined();
  const bool covered =
      !given ? slot_attention_fast::covers(sizes.slots, sizes.keys, sizes.values)
             : (sizes.values > 0 || only_written) &&
                   slot_attention_fast::covers_given(sizes.slots, sizes.keys, sizes.values);
  if (!covered) {
    return concat(sizes.slots, given ? " given" : "", " slots with keys of ", sizes.keys,
                  " and values of ", sizes.values);
  }
  const std::string small = unsupported_shared_memory(slot_attention_fast::forward_shared_memory(
      given ? slot_attention_fast::kGivenWidth : sizes.keys));
  if (!small.empty()) {
    return concat(given ? std::string("given weights") : concat("keys of ", sizes.keys), " ",
                  small);
  }
  if (sizes.tokens < kMinTensorCoreTokens) {
    return concat("fewer than ", kMinTensorCoreTokens, " tokens");
  }
  return unsupported_alignment(sequences);
}

bool slot_attention_is_fast(const SlotAttentionContext& context, const SlotAttentionTensors& in) {
  return takes_fast_kernels("slot attention", in.q.defined() ? in.q : in.k,
                            [&] { return why_plain_slot_attention(context, in); });
}

}  // namespace linnet::cuda
