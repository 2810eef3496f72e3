#include "attention/flash/token_shift.h"

#include <cstring>

#include "attention/common/token_slices.h"
#include "attention/common/tree_support.h"
#include "attention/flash/cuda/token_shift.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

// In host or device memory; null where undefined.
template <typename T>
const T* pointer_of(const Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.raw()) : nullptr;
}

// u8 [B,T,1]: whether a token reads the one before it.
Tensor readable(const MixerContext& context, const Tensor& past_mask, const Variable& x) {
  const Tensor reads = Tensor::empty({x.size(0), x.size(1), 1}, DType::u8, x.value().device());
  const TokenBefore rule{x.size(1), pointer_of<uint8_t>(context.key_mask),
                         pointer_of<int32_t>(context.segments), pointer_of<uint8_t>(past_mask)};
  if constexpr (kCuda) {
    if (on_cuda(reads)) {
      cuda::fill_readable(rule, reads);
      return reads;
    }
  }
  for (int64_t i = 0; i < reads.elements(); ++i) reads.data<uint8_t>()[i] = rule.readable(i);
  return reads;
}

}  // namespace

ShiftedTokens shift_tokens(const Variable& x, const MixerContext& context, const MixerState& state,
                           bool causal) {
  const int64_t B = x.size(0), T = x.size(1), E = x.size(2), half = E / 2;
  const Device device = x.value().device();
  Variable past;
  Tensor past_mask;
  if (const auto found = state.find("shift"); found != state.end()) {
    past = as_dtype(found->second, x.dtype());
    past_mask = mask_from_state(state, "shift_valid");
  }
  const Variable first = past.defined() ? slice(past, 2, 0, half)
                                        : Variable(Tensor::zeros({B, 1, half}, x.dtype(), device));
  Variable before = slice(x, 2, 0, half);
  if (T > 0) before = join_tokens({first, tokens_of(before, 0, T - 1)});
  if (context.key_mask.defined() || context.segments.defined() || past_mask.defined()) {
    before = masked_fill(before, readable(context, past_mask, x), 0);
  }
  ShiftedTokens result{concatenate({before, slice(x, 2, half, E)}, 2), {}};
  if (!causal) return result;
  result.state["shift"] = carry_tokens(past, x, 1);
  result.state["shift_valid"] = mask_to_state(carry_mask(
      past_mask, context.key_mask, context.segments, B, past.defined() ? 1 : 0, T, 1, device));
  return result;
}

TreeMix shift_tree(const Variable& x, std::span<const MixerNode> nodes, const MixerState& state) {
  const Tensor y = x.value().clone();
  Tensor past;
  const auto found = state.find("shift");
  if (found != state.end() && mask_from_state(state, "shift_valid").data<uint8_t>()[0] != 0) {
    past = as_dtype(found->second, x.dtype()).value();
  }
  const size_t vector = y.bytes() / nodes.size();
  const size_t half = static_cast<size_t>(x.size(2) / 2) * size_of(x.dtype());
  for (size_t node = 0; node < nodes.size(); ++node) {
    const int64_t parent = nodes[node].parent;
    char* to = static_cast<char*>(y.raw()) + node * vector;
    if (parent >= 0) {
      std::memcpy(to,
                  static_cast<const char*>(x.value().raw()) + static_cast<size_t>(parent) * vector,
                  half);
    } else if (past.defined()) {
      std::memcpy(to, past.raw(), half);
    } else {
      std::memset(to, 0, half);
    }
  }
  return {
      Variable(y), [x](std::span<const int64_t> path) {
        const Tensor valid = Tensor::full({1, 1}, 1, DType::i64);
        return MixerState{{"shift", along_path(x, path.last(1))}, {"shift_valid", Variable(valid)}};
      }};
}

}  // namespace linnet
