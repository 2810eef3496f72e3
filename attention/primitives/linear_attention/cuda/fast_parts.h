// Heads of more than 128 features on tensor cores: q and k are split into two parts of columns,
// each a call of its own with the rows of S and z that belong to it. y and dv are sums over parts,
// in f32 and in order (LaunchSums); so are denominators and gradients of proportions. dq, dk and
// states are each part's own, but the gradient of a denominator needs Q . G of both parts: the
// queries of the first one are visited twice (FeatureStep). Internal to this folder.
//
// Bytes per token and head, K features and V values: forward 4 K + 14 V + 12, of which 8 V are sums
// in f32. Backward 14 K + 22 V + 40 and 1024 for each 128 values for sums of dv; without
// denominators 2 K + 4 V less. Operations: those of two calls of K / 2, forward; backward 2.5 times
// those of one whose tiles have 128 columns. K = 256, V = 64: 1930 bytes and 96,000 operations
// forward, 6100 bytes and 740,000 backward.
#pragma once

#include <array>

#include "attention/primitives/linear_attention/cuda/fast.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"
#include "attention/primitives/linear_attention/cuda/states.h"

namespace linnet::cuda::linear_attention_fast {

inline constexpr int64_t kWidestTile = 128;

// Some columns of q and k.
struct Columns {
  int64_t first = 0, width = 0;
};

// Whether a source has more features than a tile.
inline bool needs_parts(const FeatureSource& source) {
  return source.features() > kWidestTile;
}
inline std::array<Columns, 2> parts_of(int64_t K) {
  const int64_t first = (K / 2 + 7) / 8 * 8;
  return {Columns{0, first}, Columns{first, K - first}};
}

template <typename E>
SequenceView<E> columns_of(SequenceView<E> view, const Columns& columns) {
  if (!view) return view;
  view.data += columns.first;
  view.K = columns.width;
  return view;
}
// The same call of these columns, its states left out.
template <typename Call>
Call part_of(const Call& call, const Columns& columns) {
  Call part = call;
  part.q = columns_of(call.q, columns);
  part.k = columns_of(call.k, columns);
  part.queries.width = part.keys.width = static_cast<int>(columns.width);
  part.state_in = {};
  part.state_out = {};
  if constexpr (std::is_same_v<Call, Backward>) {
    part.dq = columns_of(call.dq, columns);
    part.dk = columns_of(call.dk, columns);
    part.dstate_out = {};
    part.dstate_in = {};
  }
  return part;
}

// S and z of a part; undefined tensors become null.
struct PartState {
  Tensor memory, mass;

  template <typename E>
  LinearAttentionState<E> pointers() const {
    return linear_attention_detail::state_of<E>(memory, mass);
  }
};

// The rows of states S [.,K or 2K,V] and z that belong to some columns.
struct StateRows {
  int64_t states;  // and heads
  FeatureSource whole;
  Columns columns;
  int64_t values;  // V
  Device device;

  int64_t features() const { return whole.features() / whole.width * columns.width; }
  PartState take(const LinearAttentionState<const float>& whole) const;
  // Room for the part of the whole.
  PartState room(const LinearAttentionState<float>& whole) const;
  void put(const PartState& part, const LinearAttentionState<float>& whole) const;
};

// Numerators of y and denominators [B,T,H], which the first of two parts leaves to the second one.
struct OutputSums {
  linear_attention_detail::LaunchSums numerators;
  const float* denominators = nullptr;  // of the part before; null: there is none
};

// y and states of a call in parts: run(call of a part, sums) has blocks of tiles of 64 values, for
// each of `rows` rows of up to `tokens` tokens.
template <typename Run>
void forward_in_parts(const Forward& call, int64_t rows, int64_t tokens, const Run& run) {
  using linear_attention_detail::kChunk;
  const int64_t chunks = (tokens + kChunk - 1) / kChunk, tiles = (call.y.K + 63) / 64;
  const Tensor numerators =
      Tensor::empty({rows * call.q.H * tiles, chunks, kChunk, 64}, DType::f32, call.device);
  const Tensor denominators =
      Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
  for (const Columns& columns : parts_of(call.q.K)) {
    const StateRows state{rows * call.key_heads, call.queries, columns, call.y.K, call.device};
    const PartState before = state.take(call.state_in), after = state.room(call.state_out);
    const bool first = columns.first == 0;
    Forward part = part_of(call, columns);
    part.state_in = before.pointers<const float>();
    part.state_out = after.pointers<float>();
    OutputSums sums;
    sums.numerators = {reinterpret_cast<ResultFragment*>(pointer<float>(numerators)), first, !first,
                       chunks};
    if (call.denominators != nullptr) {
      if (first) part.denominators = pointer<float>(denominators);
      if (!first) sums.denominators = pointer<const float>(denominators);
    }
    run(part, sums);
    state.put(after, call.state_out);
  }
}

// A part of a backward call, with its states.
struct BackwardPart {
  StateRows rows;
  PartState state_in, dstate_out, dstate_in;
  Backward call;

  BackwardPart(const Backward& whole, const StateRows& rows_of_part)
      : rows(rows_of_part),
        state_in(rows.take(whole.state_in)),
        dstate_out(rows.take(whole.dstate_out)),
        dstate_in(rows.room(whole.dstate_in)),
        call(part_of(whole, rows.columns)) {
    call.state_in = state_in.pointers<const float>();
    call.dstate_out = dstate_out.pointers<const float>();
    call.dstate_in = dstate_in.pointers<float>();
  }
};

}  // namespace linnet::cuda::linear_attention_fast
