// Slot attention on tensor cores, weights exp(logits) normalised when read, or given ones: one pass
// along time for o, two for the gradients; memories stay in registers and shared memory. Internal
// to this folder; which calls come here is decided in path.h.
//
// More than 64 slots take launches of 64 each, which join their tokens' reads.
//
// Causal, as a rule. Without queries (views of no tokens, o null) the passes write a memory and
// make its gradients, without keys they read one: the noncausal and the cross form.
//
// q, k, v, logits, do and gradients are bf16 views whose rows begin on 16 bytes. Rounded to bf16
// for products: weights, scores inside a chunk, values passed between slots and tokens, the copies
// of memories that queries read. In f32: every sum, the memories, softmaxes; normalizers are f64.
// Masks and states as in ../cpu.h; pointers may be null.
#pragma once

#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/slot_attention/cpu.h"
#include "attention/tensor_core/splits.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda::slot_attention_fast {

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

// Whether there are kernels for this many slots and these widths of keys and values.
bool covers(int64_t slots, int64_t keys, int64_t values);
// The same of given weights. Values of width 0 are for memories that are only written.
bool covers_given(int64_t slots, int64_t keys, int64_t values);
// The width of their tiles of keys and values.
inline constexpr int kGivenWidth = 64;
// Bytes that a block of the forward pass takes; those of backward take 94 KiB at most, which every
// GPU with bf16 has.
size_t forward_shared_memory(int64_t keys);

// Which tokens have a memory where it is only written or only read: `count` spans, i32 [count,3] of
// row, first and last + 1 token, that cover all rows; none: each row.
struct Spans {
  const int32_t* table = nullptr;
  int64_t count = 0;
};

// How slots are read, and which of them a launch has: so many from number `first` on of all.
struct SlotReading {
  float scale = 1;
  bool mask_empty = true;
  int slots = 0, first = 0, all = 0;

  // The number of its first slot in memory `number`, counted over all memories.
  __device__ __forceinline__ int64_t place(int64_t number) const { return number * all + first; }
  // A view of all slots -> of these.
  template <typename T>
  SequenceView<T> of(SequenceView<T> view) const {
    if (view.T > 0) view.data += first;
    view.K = slots;
    return view;
  }
};

// Weights that are the logits themselves (control `given`), in place of exp(logits).
struct GivenWeights {
  bool are = false;
  // Sums are read divided by those of their weights, of at least `floor`. Otherwise they are read
  // as they are, and weights are summed without their signs: that tells which slots were written.
  bool means = false;
  float floor = 0;

  // Which bits of two weights their sums count.
  __device__ __forceinline__ uint32_t summed() const { return means ? ~0u : 0x7FFF7FFFu; }
  // By which a slot is divided, from the sum of its weights; 0: nothing was written.
  __device__ __forceinline__ float divisor(float sum) const {
    if (sum == 0) return 0;
    return means ? fmaxf(sum, floor) : 1.0f;
  }
  // Whether the divisor is the floor, which has no slope.
  __device__ __forceinline__ bool is_floor(float sum) const { return sum != 0 && sum <= floor; }
};

// Dropout of reads; without it nothing is drawn.
struct Dropout {
  RowDropout row;
  const int64_t* examples = nullptr;  // [B]
  int64_t time_offset = 0;
  bool drops = false;
};

// What both passes are given; the kernels take it as it is.
//
// Launches may cut sequences: blocks of gridDim.y splits of `split_tokens` tokens each, which begin
// with memories of their own [splits,B,H,N,.] where there are keys.
struct Call {
  Device device;  // of the arrays
  SlotReading reading;
  Dropout dropout;
  GivenWeights given;
  Reads q, k, v, logits;
  const uint8_t* query_mask = nullptr;
  const uint8_t* key_mask = nullptr;
  const int32_t* segments = nullptr;  // [B,T], causal
  Spans spans;
  SlotAttentionState<const float> state_in;
  int64_t split_tokens = 0;  // 0: sequences are whole

  __host__ __device__ int64_t time() const { return q.T > k.T ? q.T : k.T; }
  int64_t memories() const { return spans.table == nullptr ? q.B : spans.count; }
  // The number of the first slot of the memory with which the block's split begins, of scan
  // `number` of so many.
  __device__ __forceinline__ int64_t place_of_start(unsigned number, unsigned scans) const {
    return reading.place(k.T > 0 ? int64_t{blockIdx.y} * scans + number : number);
  }
  // Documents and spans are not cut.
  bool can_split() const { return segments == nullptr && spans.table == nullptr; }
};

struct Forward : Call {
  SlotAttentionState<float> state_out;
  Writes o;
};
void forward(const Forward& call);
// How it cuts sequences.
tensor_core::SplitSizes forward_splits(const Forward& call);

// Gradients of forward; none of its results is needed.
struct Backward : Call {
  Reads d_o;
  const float* dkeys_out = nullptr;
  const float* dvalues_out = nullptr;
  // [B,H,N], the gradient of every slot's log normalizer (of given weights, of their sum) where its
  // memory stays: given for after
  // the last token, replaced by that before the first one.
  float* dsums = nullptr;
  Writes dq, dk, dv, dlogits;
  float* dkeys_in = nullptr;
  float* dvalues_in = nullptr;
};
void backward(const Backward& call);
tensor_core::SplitSizes backward_splits(const Backward& call);

}  // namespace linnet::cuda::slot_attention_fast
