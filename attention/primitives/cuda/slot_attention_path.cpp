// The one place that chooses between the kernels of slot attention.
#include "attention/primitives/cuda/slot_attention_path.h"

#include <initializer_list>
#include <string>

#include "attention/primitives/cuda/fall_back.h"
#include "attention/primitives/cuda/slot_attention_fast.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

void fall_back(const std::string& why) {
  use_plain_kernels("slot attention", why);
}

// Of a call that reads, writes or does both.
struct Sizes {
  int64_t tokens, slots, keys, values;
  explicit Sizes(const SlotTensors& in)
      : tokens((in.q.defined() ? in.q : in.k).size(1)),
        slots(in.logits.defined() ? in.logits.size(3) : in.keys.size(2)),
        keys((in.q.defined() ? in.q : in.k).size(3)),
        values((in.v.defined() ? in.v : in.values).size(3)) {}
};

}  // namespace

std::string why_plain_slot_attention(const SlotAttentionContext& context, const SlotTensors& in) {
  const std::initializer_list<const Tensor*> sequences{&in.q, &in.k, &in.v, &in.logits};
  for (const Tensor* x : sequences) {
    if (x->defined() && x->dtype() != DType::bf16)
      return concat("numbers of ", name_of(x->dtype()));
  }
  const SlotAttentionOptions& options = context.options;
  if (options.control != SlotControl::exp) return "weights other than the exponential of logits";
  if (options.scale == 0) return "a scale of 0";
  if (options.dropout > 0) return "dropout of slots";
  const Sizes sizes(in);
  if (!slot_attention_fast::covers(sizes.slots, sizes.keys, sizes.values)) {
    return concat(sizes.slots, " slots with keys of ", sizes.keys, " and values of ", sizes.values);
  }
  const size_t asked = slot_attention_fast::forward_shared_memory(sizes.keys);
  if (const size_t available = shared_memory_limit(); asked > available) {
    return concat("keys of ", sizes.keys, " on a GPU with ", available / 1024,
                  " KiB of shared memory a block (they take ", (asked + 1023) / 1024, ")");
  }
  if (sizes.tokens < kFewestTensorCoreTokens) {
    return concat("fewer than ", kFewestTensorCoreTokens, " tokens");
  }
  for (const Tensor* x : sequences) {
    if (x->defined() && !slot_attention_fast::is_aligned(*x)) {
      return "tensors that do not begin on 16 bytes";
    }
  }
  return {};
}

bool slot_attention_is_fast(const SlotAttentionContext& context, const SlotTensors& in) {
  const bool is_short = Sizes(in).tokens < kFewestTensorCoreTokens;
  if (kernel_choice() == KernelChoice::plain || is_short) return false;
  const std::string why = why_plain_slot_attention(context, in);
  if (why.empty()) return true;
  // Where they are not demanded, nobody expects tensor cores in f32.
  const bool expected = (in.q.defined() ? in.q : in.k).dtype() == DType::bf16;
  if (expected || kernel_choice() == KernelChoice::tensor_cores) fall_back(why);
  return false;
}

}  // namespace linnet::cuda
