// Shared by the causal and the memory kernels of linear attention: sizes, feature tiles and their
// gradients, normalised rows, states in scratch. Internal to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/linear_attention/cpu.h"

namespace linnet::linear_attention_detail {

// Tokens that causal attention processes together: the triangular products inside a chunk grow with
// it, moving the state from chunk to chunk costs the same for every chunk.
inline constexpr int64_t kChunk = 32;

// Which side of the inputs a feature tile comes from.
enum class Side : uint8_t { query, key };

// Features of tokens one after the other, in scratch. Rows of masked tokens and padding are zero.
template <typename T>
struct FeatureTile {
  T* plain;     // phi(x) [padded(n), kp]
  T* features;  // [padded(n), mp]: the same array, or where re-weighted of its own
  // Re-weighted, of pi P / 2 [padded(n)], 0 where masked.
  T* cosines;
  T* sines;
};

// One call's inputs and sizes. Tiles are padded as chunked.h says: values [padded(n), vp], features
// [padded(n), mp], where re-weighted phi(x) cos [kp] and phi(x) sin [kp], each padded. A state is S
// [mp, vp] followed by z [mp]; products with it are m deep.
template <typename T>
struct Kernel {
  // Checks shapes and options (Error).
  Kernel(const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
         int64_t key_heads, int64_t heads, int64_t value_width);

  const LinearAttentionOptions& options;
  const LinearAttentionInputs<T>& inputs;
  int64_t key_heads, group;  // group: query heads of a key head
  int64_t K, V, kp, m, mp, vp;
  bool reweighted, normalized;

  int64_t state_size() const { return mp * vp + mp; }
  // Multiply-adds of the products with the state over these spans.
  double work(const std::vector<Span>& spans) const;

  // A tile of that many tokens, and its contents from a token on.
  FeatureTile<T> take_features(chunked::Scratch<T>& scratch, int64_t tokens = kChunk) const;
  FeatureTile<T> from_token(const FeatureTile<T>& tile, int64_t token) const;
  void load_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                     const FeatureTile<T>& out) const;
  // Rows of dfeatures [n, mp] become, in place, gradients of phi(x) [n, kp]; where re-weighted and
  // wanted, the gradients of the angles pi P / 2 are added to dangles [n].
  void fold_gradients(int64_t n, const FeatureTile<T>& tile, T* dfeatures, T* dangles) const;
  // From gradients of phi(x) [n, kp] to dx (row (b, t+i, h) of `dx`, if wanted).
  void store_feature_gradients(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                               const FeatureTile<T>& tile, const T* dplain,
                               SequenceView<T> dx) const;
  // dproportions[(b T + t + i) H + h], if wanted.
  void store_proportion_gradients(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                                  const T* dangles, T* dproportions) const;
  void load_values(int64_t b, int64_t t, int64_t n, int64_t h, T* out) const {
    chunked::load_rows(inputs.v, inputs.key_mask, b, t, n, h, out, vp);
  }
  // Rows of gradients of v: values [n, vp], zero where masked.
  void store_value_gradients(int64_t b, int64_t t, int64_t n, int64_t h, const T* dvalues,
                             SequenceView<T> dv) const;

  // out[i] = queries_i . normalizer + sum_{j <= i} weights_ij for i < n: the argument of D. queries
  // [n, mp], weights as chunked::lower_product leaves them, out [padded(n)].
  void sum_denominators(int64_t n, const T* queries, const T* mass, const T* weights, T* out) const;
  // y = numerators / D(denominators).
  void store_outputs(int64_t b, int64_t t, int64_t n, int64_t h, const T* numerators,
                     const T* row_denominators, SequenceView<T> y, T* denominators) const;
  // G = dy / D [padded(n), vp] and the gradients of the denominators [padded(n)].
  void load_output_gradients(int64_t b, int64_t t, int64_t n, int64_t h, SequenceView<const T> y,
                             const T* denominators, SequenceView<const T> dy, T* G,
                             T* ddenominators) const;

  // Between states in scratch and state number `index` of dense arrays (null: zero, not written).
  void load_state(LinearAttentionState<const T> from, int64_t index, int64_t key_head,
                  T* state) const;
  void store_state(const T* state, LinearAttentionState<T> to, int64_t index,
                   int64_t key_head) const;
  // state += sum_i left_i right_i^T, z += sum_i weight_i left_i (weights null: all 1); left [n,
  // mp], right [n, vp].
  void accumulate(int64_t n, const T* left, const T* right, const T* weights, T* state) const;
  // mass += sum_i weight_i rows_i (weights null: all 1); rows [n, mp].
  void add_rows(int64_t n, const T* rows, const T* weights, T* mass) const;

 private:
  void load_angles(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                   const FeatureTile<T>& out) const;
  // load_features and store_feature_gradients of one map.
  template <FeatureMap map>
  void fill_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                     const FeatureTile<T>& out) const;
  template <FeatureMap map>
  void pass_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                     const FeatureTile<T>& tile, const T* dplain, SequenceView<T> dx) const;
  // Arrays of one side.
  const SequenceView<const T>& tokens(Side side) const {
    return side == Side::query ? inputs.q : inputs.k;
  }
  const uint8_t* mask(Side side) const {
    return side == Side::query ? inputs.query_mask : inputs.key_mask;
  }
  // The row of a state in scratch of row r of a dense one.
  int64_t padded_row(int64_t r) const { return r < K ? r : kp + r - K; }
};

// Sums of the splits of spans: the state with which a split starts is made of those before it.
template <typename T>
class Partials {
 public:
  Partials(const std::vector<chunked::Split>& splits, int64_t heads, int64_t state_size);
  bool needed() const { return !sums_.empty(); }
  T* at(int64_t split, int64_t head) {
    return sums_.data() + (split * heads_ + head) * state_size_;
  }
  // state += sums of the splits of this span before (after) split number `split`, in order.
  void add_before(const std::vector<chunked::Split>& splits, int64_t split, int64_t head, T* state);
  void add_after(const std::vector<chunked::Split>& splits, int64_t split, int64_t head, T* state);

 private:
  void add(int64_t split, int64_t head, T* state);
  int64_t heads_, state_size_;
  std::vector<T> sums_;
};

}  // namespace linnet::linear_attention_detail
