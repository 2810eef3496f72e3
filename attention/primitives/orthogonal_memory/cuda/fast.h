// Orthogonal memory on tensor cores: causal in one pass along time for y, one back for the
// gradients; of whole segments (noncausal, cross-attention) the same passes around sums over all
// codes (whole.h). Projections, means and weights stay on the chip. Internal to this folder and
// that of lavo; which calls come here is decided in path.h.
//
// q, f, y, dy, dq and df are bf16 views whose rows begin on 16 bytes. The basis, and weights and
// gradients of projections where they meet it, are rounded to bf16 for the products; projections
// themselves, sums along time, means and softmaxes are f32. One memory per head; pointers that may
// be null say so.
#pragma once

#include <limits>

#include "attention/primitives/common/row_dropout.h"
#include "attention/tensor_core/splits.h"
#include "core/cuda/kernel.h"
#include "core/sequence_view.h"

namespace linnet::cuda::orthogonal_memory_fast {

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

// Tokens that a block computes at a time, and that share one entry of the arrays that forward
// saves.
inline constexpr int64_t kChunkTokens = 64;

// Whether there are kernels for this width of heads and this rank; bytes of shared memory that a
// block of them takes.
bool has_kernels(int64_t width, int64_t rank);
size_t forward_shared_memory(int64_t width);
size_t backward_shared_memory(int64_t width);

// How a sequence is split among blocks where its heads alone do not fill a GPU, which has `slots`
// for them: runs of so many chunks. A pass that makes what runs begin with takes `state_eighths`
// eighths of the pass that they are for.
struct ChunkRuns {
  int runs = 1;
  int chunks = std::numeric_limits<int>::max();
};
using tensor_core::kMultiprocessors;
ChunkRuns chunk_runs(int64_t blocks, int64_t tokens, int64_t slots = 2 * kMultiprocessors,
                     int64_t state_eighths = 0);

// Passed from forward to backward. Causal, for each chunk of a row: the sums before it, completed
// and of the open window, and the position of its first token in its window. Whole, for each chunk
// of a row that has segments, and for the row otherwise: the sums of the segment that reaches into
// the chunk and of the one that reaches out of it, and how many codes they have; and of these edges
// of each chunk of codes the sums of codes, how many count, and whether a segment begins.
struct Saved {
  float* sums = nullptr;           // [B,chunks,H,2,r]
  int32_t* phases = nullptr;       // [B,chunks]; causal, as the last three are whole
  int64_t* counts = nullptr;       // [B,chunks,2]; not for backward
  float* edges = nullptr;          // [B,chunks,H,2,d]
  int32_t* edge_counts = nullptr;  // [B,chunks,3]
};

// What both passes read.
struct Inputs {
  Reads q, f;                           // of different lengths where `whole` without segments
  const uint8_t* query_mask = nullptr;  // [B,T]; null: all count
  const uint8_t* code_mask = nullptr;
  const int32_t* segments = nullptr;  // [B,T]; null: one per row
  const float* basis = nullptr;       // [H,r,d]
  int rank = 0;
  // Positions of a window. One, of which tokens read their own (`inclusive`), is the prefix.
  int window = 1;
  bool inclusive = false;
  // The memory has all tokens of the segment, also later ones.
  bool whole = false;
  ChunkRuns split;
  float scale = 1;
  // Dropout of the weights with which the memory is read: names of its draws, of which those of the
  // rows' examples [B] may be null (the row number); time_offset is the time of query 0.
  bool drops = false;
  RowDropout dropout{0, {}, 0};
  const int64_t* examples = nullptr;
  int64_t time_offset = 0;
  int64_t* tokens = nullptr;  // [B,T]: how many are in the memory that a token reads
  // Causal: results of forward; whole: as edge_sums() and whole_totals() left it.
  Saved saved;

  // Chunks of a row of codes.
  __host__ __device__ int64_t chunks() const { return (f.T + kChunkTokens - 1) / kChunkTokens; }
  // Whether the passes look at single codes: not where all tokens of a row have the same memory.
  __host__ __device__ bool reads_codes() const { return !whole || segments != nullptr; }
  // The entry of a chunk in the saved arrays.
  __host__ __device__ int64_t entry(int64_t row, int64_t chunks, int64_t chunk) const {
    return reads_codes() ? row * chunks + chunk : row;
  }
};

struct Forward : Inputs {
  // [B,T], of which the first is read; null: time_offset. Causal.
  const int32_t* positions = nullptr;
  // The state before the first token and after the last one; whole: of whole_totals() alone.
  const float* completed = nullptr;  // [B,H,r]; these three null: no carried state
  const float* partial = nullptr;
  const int64_t* counts = nullptr;  // [B,2]
  float* completed_out = nullptr;
  float* partial_out = nullptr;
  int64_t* counts_out = nullptr;
  Writes y;
};
void forward(const Forward& call);

struct Backward : Inputs {
  Reads dy;
  // The share of the read in y, and of the token's own code: where the memory is not empty, and
  // where it is.
  float share = 1, code_share = 0, empty_code_share = 0;
  // Of the state, [B,H,r]; null: zeros, or not wanted. Whole: those of whole_gradients() alone.
  // Causal sequences that are split have, instead of the first two, those of the sums after each
  // run, [runs * B,H,r].
  const float* dcompleted_out = nullptr;
  const float* dpartial_out = nullptr;
  float* dcompleted = nullptr;
  float* dpartial = nullptr;
  // What all runs but the first add to the gradients of the sums before them, [(runs - 1) * B,H,r]
  // to the last two, and nothing else.
  bool sums_only = false;
  Writes dq;
  Writes df;  // whole: of codes in segments that lie in a chunk; others are zeros
  // [runs * B,H,r,d]: per run and row; whole: [(runs + 1) * B,H,r,d], of which whole_gradients()
  // makes the last B, the terms of codes.
  float* dbasis = nullptr;
  float* df_dot_f = nullptr;  // [B,T,H]: of each token's df and code; may be null: not wanted
  // Whole: gradients of the sums, of each chunk's tokens in the segment that reaches into it and in
  // the one that reaches out of it; without segments of each run, in the first.
  float* dsums = nullptr;  // [B,entries,H,2,r]

  __host__ __device__ int64_t entries() const { return reads_codes() ? chunks() : split.runs; }
};
void backward(const Backward& call);
// Blocks that a multiprocessor holds.
int64_t backward_blocks(int64_t width);

}  // namespace linnet::cuda::orthogonal_memory_fast
