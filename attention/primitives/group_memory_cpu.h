// What every query reads of the groups before its own, on plain arrays: reference and CPU kernels.
// attention/primitives/group_memory.h has it on Variables.
//
//   y_i = scale (sum_{g(j) < g(i)} k_j v_j^T)^T q_i,   g(p) = floor(p / group), p counted inside
//   the document
//
// Inputs are those of block attention: masks, spans and carried keys mean the same. The carried
// keys belong to the group that is open when the call begins; the groups before it are in a memory.
#pragma once

#include "attention/primitives/block_attention_cpu.h"

namespace linnet {

struct GroupMemoryOptions {
  int64_t group = 0;
  double scale = 1.0;
};

// y [B,T,H,V] and memory_out [B,G,K,V]: the complete groups of each row's last document. memory_in
// (null: zeros) has those before the first span of each row that carries in. Bitwise the same for
// any number of threads. Throws Error on shapes that do not fit.
template <typename T>
void group_memory_forward(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options,
                          const T* memory_in, SequenceView<T> y, T* memory_out);

// The gradients of sum(y * dy) + sum(memory_out * dmemory_out), overwritten; those of past keys and
// values and dmemory_in may be null, and so may dmemory_out.
template <typename T>
void group_memory_backward(const BlockAttentionInputs<T>& in, const GroupMemoryOptions& options,
                           const T* memory_in, SequenceView<const T> dy, const T* dmemory_out,
                           const BlockAttentionGradients<T>& gradients, T* dmemory_in);

// The literal equation, one pair of query and key at a time. For tests.
void group_memory_reference(const BlockAttentionInputs<double>& in,
                            const GroupMemoryOptions& options, const double* memory_in,
                            SequenceView<double> y, double* memory_out);

}  // namespace linnet
