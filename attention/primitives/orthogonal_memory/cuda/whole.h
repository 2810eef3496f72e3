// The orthogonal memory of whole segments (noncausal, cross-attention) on tensor cores: sums over
// all codes before the pass of fast.h, and the gradients of codes after it. Internal to this
// folder.
//
//   forward:  edge_sums, whole_totals, forward
//   backward: backward, whole_gradients, spread_gradients
//
// A memory is B times the sum of its codes, so that sums are made of codes themselves, in f32, and
// projected once. Where rows have segments, a chunk of 64 codes has two edges that other chunks
// complete: the codes of the segment that reaches into it, and those of the one that reaches out of
// it (none where no segment begins in it). Segments in between lie in the chunk and are left to the
// passes.
//
// Bytes per token and head of width d, besides those of the passes: 2 d for f forward, 2 d for df
// backward, less than a tenth more for edges; hardly any operations. The totals are a block that
// loops over the chunks of a row.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/fast.h"

namespace linnet::cuda::orthogonal_memory_fast {

// Sums the codes of in.f to the edges in in.saved.
void edge_sums(const Inputs& in);
// From edges to sums and counts in call.saved for each chunk, or for each row without segments; the
// state after the last segment.
void whole_totals(const Forward& call);
// From call.dsums to the gradients of the segments that no chunk holds: of every code to dcodes
// [B,chunks,H,2,d] (without segments [B,1,H,2,d]), of the basis to the last of call.dbasis, and of
// the carried state.
void whole_gradients(const Backward& call, float* dcodes);
// Writes those of codes to call.df, zeros for codes that do not count.
void spread_gradients(const Backward& call, const float* dcodes);

}  // namespace linnet::cuda::orthogonal_memory_fast
