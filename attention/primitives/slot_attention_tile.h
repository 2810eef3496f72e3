// What the causal and the memory kernels of slot attention share: sizes, tiles of tokens and their
// weights, soft-max reads, states in scratch. Internal to slot_attention*.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/primitives/chunked.h"
#include "attention/primitives/slot_attention_cpu.h"

namespace linnet::slot_attention_detail {

// At most so many tokens in a tile of the causal kernels: the triangular products inside a tile
// grow with it, moving the memory past a tile costs the same for every tile. Tiles have room for
// chunked::kChunk, which the memory kernels use.
inline constexpr int64_t kTileTokens = 32;

// A run of tokens of one head that is processed at once. Weights inside are alpha relative to
// `reference` (log space, exp control only): E = exp(a - reference) <= exp(kReach).
template <typename T>
struct Tile {
  int64_t t = 0, n = 0;
  std::vector<T> reference;  // [np]
  // What multiplies the carried state on entry and the accumulated state on exit.
  std::vector<T> entry, exit;  // [np]
};

// A memory in scratch: matrix [kp + vp, np], rows of K~^T, then of V~^T; mass [np].
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

  // The mass of an empty slot.
  double empty_mass() const;
  void load_memory(SlotAttentionState<const T> from, int64_t index, int64_t h, T* turn,
                   Memory<T>& memory) const;
  void store_memory(const Memory<T>& memory, SlotAttentionState<T> to, int64_t index, int64_t h,
                    T* turn) const;
  // Scratch for the two above.
  int64_t turn_size() const { return np * (kp > vp ? kp : vp); }

  // Chooses the longest tile from token t on (at most kTileTokens, before `end`) whose weights
  // can be written relative to one reference, a function of `mass` and of these tokens alone.
  void cut_tile(int64_t b, int64_t h, int64_t t, int64_t end, const std::vector<double>& mass,
                Tile<T>& tile) const;
  // Scratch for the weights of a tile.
  TileWeights<T> take_weights(chunked::Scratch<T>& scratch) const;
  // E, zero where masked or padded.
  void load_weights(int64_t b, int64_t h, const Tile<T>& tile, const TileWeights<T>& weights) const;
  // F [n, np], by which token i multiplies sums to read them (0: slot is empty), given the mass
  // before the tile; sets tile.entry and tile.exit and moves mass past the tile.
  void read_factors(Tile<T>& tile, const T* weights, std::vector<double>& mass, T* factors) const;
  // F of a slot whose sum of weights (relative ones in log space) is `sum`.
  T read_factor(T sum) const;
  // Whether the sum behind F is below the floor, where F has no slope.
  bool is_clamped(T factor) const;
  // dE -> dlogits of the tile's tokens.
  void store_logit_gradients(int64_t b, int64_t h, const Tile<T>& tile, const T* weights,
                             const T* dweights, SequenceView<T> dlogits) const;

  // One row: from q . sums (products, [np]) to the logits scale F products.
  void products_to_logits(const T* factors, T* products) const;
  // Soft-max of logits over the slots in use. Logits of slots that are left out become 0.
  void soft_max_row(const T* factors, T* logits, T* probabilities) const;

  // The gradients of that row. In: F, logits, and `dreads`, the products of do with the sums of
  // values, and what dropout multiplies probabilities by (`kept`, null: nothing). Out: scale F
  // dlogit, F probability kept, and the gradient of the sum of weights behind F. Overwrites
  // logits and dreads.
  void read_gradient_row(const T* factors, const T* kept, T* logits, T* dreads, T* to_keys,
                         T* to_values, T* to_sums) const;

  // What dropout multiplies the probabilities of one token's head by, in `out` [np]; null where
  // nothing is dropped.
  const T* kept_row(int64_t b, int64_t t, int64_t h, T* out) const;

  // Multiplies column l of the matrix by factors[l].
  void scale_columns(T* matrix, const std::vector<T>& factors) const;
  // matrix += [left^T weights.keys ; right^T weights.values]: left [n, kp], right [n, vp].
  void accumulate(int64_t n, const T* left, const T* right, const TileWeights<T>& weights,
                  T* matrix) const;
};

// The gradient of a memory: matrix [kp + vp, np] like the memory's, and per slot that of the sum of
// weights (of the log sum less what the means contribute, in log space).
template <typename T>
struct MemoryGradient {
  T* matrix = nullptr;
  // In double: what is added up nearly cancels.
  std::vector<double> sums;
};

// sum over the K~ and V~ of slot l of a . b, for all slots.
template <typename T>
std::vector<double> slot_products(const Kernel<T>& kernel, const T* a, const T* b);

// The gradient after the last write to a memory, from that of state number `index`.
template <typename T>
void load_end_gradient(const Kernel<T>& kernel, SlotAttentionState<const T> dstate, int64_t index,
                       int64_t h, const Memory<T>& memory, T* turn, MemoryGradient<T>& out);

// Adds a later piece's memory (written on its own, from empty) to an earlier one.
template <typename T>
void append_memory(const Kernel<T>& kernel, const Memory<T>& later, Memory<T>& memory);

}  // namespace linnet::slot_attention_detail
