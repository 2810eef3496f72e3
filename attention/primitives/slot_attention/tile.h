// Shared by the causal and the memory kernels of slot attention: sizes, tiles of tokens and their
// weights, softmax reads, states in scratch. Internal to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"
#include "attention/primitives/common/state_scan.h"
#include "attention/primitives/slot_attention/cpu.h"

namespace linnet::slot_attention_detail {

// At most so many tokens in a tile of the causal kernels: what a scan reads of them for one block
// of the memory stays in the nearest cache, and to load and store the block, some 150 cycles, is
// little next to 32 cycles for each of them.
inline constexpr int64_t kTileTokens = 2 * chunked::kChunk;

// A run of tokens of one head that is processed at once. Weights inside are alpha relative to
// `reference` (log space, exp control only): E = exp(a - reference) <= exp(kReach).
template <typename T>
struct Tile {
  int64_t t = 0, n = 0;
  std::vector<T> reference;  // [np]
  // Factors of sums from before the tile, whose reference is a new one; empty where it is that of
  // the tile before.
  std::vector<T> entry;  // [np]
};

// How much was written to the slots on a scan of tiles: sums of alpha, in log space sums exp(unit).
// Memories are means when a scan in log space begins and ends, inside it sums relative to `unit`.
struct RunningNormalizer {
  std::vector<double> sums, unit;  // [np]
  bool begins = true;              // no tile was begun yet
};

// A memory in scratch: matrix [kp + vp, np], rows of K~^T, then of V~^T; mass [np]: its normalizer.
template <typename T>
struct Memory {
  T* matrix = nullptr;
  std::vector<double> mass;
};

// alpha of a tile, [padded(n), np] (relative to its reference in log space): the weights that keys
// and values are written with, one array unless values have logits of their own.
template <typename T>
struct TileWeights {
  T* keys = nullptr;
  T* values = nullptr;
};

// One call's inputs and sizes; tiles are padded as chunked.h says.
template <typename T>
struct Kernel {
  // Checks shapes and options (Error).
  Kernel(const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs, int64_t H,
         int64_t N, int64_t K, int64_t V);

  const SlotAttentionOptions& options;
  const SlotAttentionInputs<T>& inputs;
  int64_t H, N, K, V, np, kp, vp;
  bool log_space;  // exp control

  int64_t matrix_size() const { return (kp + vp) * np; }
  double work(const std::vector<Span>& spans) const;

  // The normalizer of an empty slot.
  double empty_normalizer() const;
  void load_memory(SlotAttentionState<const T> from, int64_t index, int64_t h, T* transposed,
                   Memory<T>& memory) const;
  void store_memory(const Memory<T>& memory, SlotAttentionState<T> to, int64_t index, int64_t h,
                    T* transposed) const;
  // Scratch for the two above.
  int64_t transposed_size() const { return np * (kp > vp ? kp : vp); }

  // From the normalizer before a scan, and to that after it.
  RunningNormalizer begin_normalizer(const std::vector<double>& normalizer) const;
  std::vector<double> end_normalizer(const RunningNormalizer& normalizer) const;
  // Factors that turn sums into means at the end of a scan in log space; otherwise 1.
  std::vector<T> end_factors(const RunningNormalizer& normalizer) const;
  void end_scan(const RunningNormalizer& normalizer, Memory<T>& memory) const;

  // Chooses the longest tile from token t on (at most kTileTokens, before `end`) whose weights
  // can be written relative to one reference, a function of `normalizer` and of these tokens alone.
  // The reference is that of the tile before as long as sums stay in its reach.
  void next_tile(int64_t b, int64_t h, int64_t t, int64_t end, RunningNormalizer& normalizer,
                 Tile<T>& tile) const;
  // Scratch for the weights of a tile.
  TileWeights<T> take_weights(chunked::Scratch<T>& scratch) const;
  // E, zero where masked or padded.
  void load_weights(int64_t b, int64_t h, const Tile<T>& tile, const TileWeights<T>& weights) const;
  // F [n, np], by which token i multiplies sums to read them (0: slot is empty), given the
  // normalizer before the tile; moves the normalizer past the tile.
  void read_factors(const Tile<T>& tile, const T* weights, RunningNormalizer& normalizer,
                    T* factors) const;
  // F of a slot whose sum of weights (relative ones in log space) is `sum`.
  T read_factor(T sum) const;
  // Whether the sum behind F is below the floor, where F has no slope.
  bool is_clamped(T factor) const;
  // dE -> dlogits of the tile's tokens.
  void store_logit_gradients(int64_t b, int64_t h, const Tile<T>& tile, const T* weights,
                             const T* dweights, SequenceView<T> dlogits) const;

  // Rows of n tokens, [n, np]; F may be one row for all (of stride 0).
  // From q . sums (products) to the logits scale F products.
  void products_to_logits(int64_t n, TileRows<const T> factors, T* products) const;
  // Softmax of logits over the slots in use, times F and the factor of dropout (`kept`, null:
  // nothing). Logits of slots that are left out become 0.
  void read_rows(int64_t n, TileRows<const T> factors, const T* kept, T* logits, T* reads) const;
  // The gradients of that. In: F, kept, logits, and `dreads`, the products of do with the sums of
  // values. Out: scale F dlogit, F probability kept, and the gradient of the sum of weights behind
  // F. Overwrites logits and dreads.
  void read_gradient_rows(int64_t n, TileRows<const T> factors, const T* kept, T* logits, T* dreads,
                          T* to_keys, T* to_values, T* to_sums) const;
  // Factors of dropout on the probabilities of a head, in `out` [n, np]; null where nothing is
  // dropped.
  const T* kept_rows(int64_t b, int64_t t, int64_t n, int64_t h, T* out) const;

  // Multiplies column l of the matrix, or row l of one [np, width], by factors[l], if there are
  // any.
  void scale_columns(T* matrix, const std::vector<T>& factors) const;
  void scale_rows(T* matrix, int64_t width, const std::vector<T>& factors) const;
  // matrix += [left^T weights.keys ; right^T weights.values]: left [n, kp], right [n, vp].
  void accumulate(int64_t n, const T* left, const T* right, const TileWeights<T>& weights,
                  T* matrix) const;

 private:
  // How many tokens of the tile may be written relative to its reference.
  int64_t tokens_in_reach(int64_t b, int64_t h, const Tile<T>& tile) const;
  // Gives the tile a reference of its own, and shortens it where that does not reach.
  void renew_reference(int64_t b, int64_t h, RunningNormalizer& normalizer, Tile<T>& tile) const;
  simd::Vector<T> exponentials(int64_t rows, TileRows<const T> factors, T* logits, T* out) const;
};

// The gradient of a memory: matrix [kp + vp, np] like the memory's, and per slot that of the sum of
// weights (of the log sum less what the means contribute, in log space).
template <typename T>
struct MemoryGradient {
  T* matrix = nullptr;
  // In double: the terms nearly cancel.
  std::vector<double> sums;
};

// sum over the K~ and V~ of slot l of a . b, for all slots.
template <typename T>
std::vector<double> slot_products(const Kernel<T>& kernel, const T* a, const T* b);

// The gradient after the last write to a memory, from that of state number `index`.
template <typename T>
void load_end_gradient(const Kernel<T>& kernel, SlotAttentionState<const T> dstate, int64_t index,
                       int64_t h, const Memory<T>& memory, T* transposed, MemoryGradient<T>& out);

// Adds a later split's memory (written on its own, from empty) to an earlier one.
template <typename T>
void append_memory(const Kernel<T>& kernel, const Memory<T>& later, Memory<T>& memory);

}  // namespace linnet::slot_attention_detail
