// The memories with which the splits of a cut sequence begin: each split's own writes, made side by
// side, are joined along time. Internal to this folder.
//
// Memories are means and log normalizers, so two of them, one after the other, are
//   z = log(exp z_1 + exp z_2),   K~ = exp(z_1 - z) K~_1 + exp(z_2 - z) K~_2,   V~ likewise.
//
// Those of given weights are sums, as are their masses.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast.h"

namespace linnet::cuda::slot_attention_fast {

// The time that starts take, in eighths of the pass that they are for: of a chunk 1,165
// instructions a warp, against 2,369 where it is read, too (N = K = V = 64, counted).
inline constexpr int64_t kStartEighths = 4;

class Starts {
 public:
  // From the carried memory on. Nothing is computed for a single split, where nothing is written,
  // and where nobody looks at memories.
  Starts(const Call& call, const tensor_core::SplitSizes& splits, bool looked_at = true);
  // The call, or a part of it, that begins with them.
  void give(Call& call) const;
  // The log normalizers [splits,B,H,N]; null where all splits begin with the carried memory.
  const double* normalizers() const;

 private:
  tensor_core::SplitSizes splits_;
  Tensor keys_, values_, mass_;
};

// The whole memory of a call that only writes, which is cut.
void write_in_splits(const Forward& call, const tensor_core::SplitSizes& splits);

// What `count` splits of so many tokens write by themselves: memories [count,B,H,N,.].
void write_splits(const Call& call, int64_t tokens, int64_t count,
                  const SlotAttentionState<float>& to);

}  // namespace linnet::cuda::slot_attention_fast
