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

// For all chunks of a row of codes.
struct Edges {
  float* codes = nullptr;     // [B,chunks,H,2,d]: sums of codes
  int32_t* counts = nullptr;  // [B,chunks,3]: how many codes count, and whether a segment begins
  int64_t chunks = 0;
};
// Sums the codes of in.f.
void edge_sums(const Inputs& in, const Edges& edges);

// The carried state, and the state after the last segment, as in OrthogonalMemoryCarry.
struct WholeState {
  const float* completed = nullptr;  // [B,H,r]; these two null: no carried state
  const int64_t* counts = nullptr;   // [B,2]
  float* completed_out = nullptr;
  float* partial_out = nullptr;
  int64_t* counts_out = nullptr;
};
// From edges to in.saved for each chunk, or for each row where `in` has no segments.
void whole_totals(const Forward& in, const Edges& edges, const WholeState& state);

// Gradients: of the segments that no chunk holds.
struct WholeGradients {
  int64_t entries = 0;                    // of dsums: chunks, without segments runs
  const float* dcompleted_out = nullptr;  // [B,H,r]; may be null: zeros
  float* dcompleted = nullptr;            // [B,H,r]; may be null: not wanted
  float* dbasis = nullptr;                // [B,H,r,d]
  float* dcodes = nullptr;  // [B,chunks,H,2,d], without segments [B,1,H,2,d]: of every code
};
// From call.dsums to gradients of codes.
void whole_gradients(const Backward& call, const Edges& edges, const WholeGradients& gradients);
// Writes them to call.df, zeros for codes that do not count.
void spread_gradients(const Backward& call, const WholeGradients& gradients);

}  // namespace linnet::cuda::orthogonal_memory_fast
