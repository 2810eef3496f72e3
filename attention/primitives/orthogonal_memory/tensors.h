// Tensors of a call of the orthogonal memory, on the CPU and on a device. Internal to this folder.
#pragma once

#include "attention/primitives/common/call_path.h"
#include "core/tensor.h"

namespace linnet {

// One call's tensors, or where their gradients go (without counts), for kernels of the CPU too: q
// and f in the type that is kept, the others in the computing type; carried sums may be undefined.
struct OrthogonalMemoryTensors {
  Tensor q, f, basis, completed, partial, counts;
};

// Saved by the forward pass on tensor cores for the backward one; undefined where plain kernels
// computed, which recompute everything. Causal: phases; whole segments: edges and their counts.
struct OrthogonalMemorySaved {
  Tensor sums, tokens, phases, edges, edge_counts;
  CallPath path = CallPath::plain;
};

}  // namespace linnet
