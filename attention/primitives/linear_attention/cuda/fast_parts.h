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

namespace linnet::cuda::linear_attention_fast {

inline constexpr int64_t kWidestTile = 128;

// Some columns of q and k.
struct Columns {
  int64_t first = 0, width = 0;
};

// Whether K columns have more features than a tile.
inline bool needs_parts(int64_t K, bool reweighted) {
  return (reweighted ? 2 * K : K) > kWidestTile;
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
inline Forward part_of(const Forward& call, const Columns& columns) {
  Forward part = call;
  part.q = columns_of(call.q, columns);
  part.k = columns_of(call.k, columns);
  part.state_in = {};
  part.state_out = {};
  return part;
}
inline Backward part_of(const Backward& call, const Columns& columns) {
  Backward part = call;
  part.q = columns_of(call.q, columns);
  part.k = columns_of(call.k, columns);
  part.dq = columns_of(call.dq, columns);
  part.dk = columns_of(call.dk, columns);
  part.state_in = part.dstate_out = {};
  part.dstate_in = {};
  return part;
}

// S and z of a part; undefined tensors become null.
struct PartState {
  Tensor memory, mass;

  LinearAttentionState<float> pointers() const {
    return {pointer_or_null<float>(memory), pointer_or_null<float>(mass)};
  }
  LinearAttentionState<const float> reads() const { return {pointers().memory, pointers().mass}; }
};

// The rows of states S [.,K or 2K,V] and z that belong to some columns.
struct StateRows {
  int64_t states;  // and heads
  int64_t K;
  bool reweighted;
  Columns columns;
  int64_t values;  // V
  Device device;

  int64_t features() const { return reweighted ? 2 * columns.width : columns.width; }
  PartState take(const LinearAttentionState<const float>& whole) const;
  // Room for the part of the whole.
  PartState room(const LinearAttentionState<float>& whole) const;
  void put(const PartState& part, const LinearAttentionState<float>& whole) const;
};

// Where the first of two parts leaves numerators of y and denominators [B,T,H] to the second one.
// Undefined: there are no parts.
struct OutputSums {
  Tensor numerators, denominators;
  bool first = true, last = true;
  int64_t chunks = 0;

  // To the arguments of a kernel, which have those of the call.
  template <typename Arguments>
  void set(Arguments& a) const {
    if (!numerators.defined()) return;
    auto* fragments = reinterpret_cast<ResultFragment*>(pointer<float>(numerators));
    a.sums = {fragments, first, last, chunks};
    if (a.denominators == nullptr) return;
    if (!first) a.denominators_before = pointer<const float>(denominators);
    if (!last) a.denominators = pointer<float>(denominators);
  }
};

// y and states of a call in parts: run(call of a part, sums) has blocks of tiles of 64 values, for
// each of `rows` rows of up to `tokens` tokens; states have `state_heads` heads.
template <typename Run>
void forward_in_parts(const Forward& call, int64_t rows, int64_t tokens, int64_t state_heads,
                      const Run& run) {
  using linear_attention_detail::kChunk;
  OutputSums sums;
  sums.chunks = (tokens + kChunk - 1) / kChunk;
  const int64_t tiles = (call.y.K + 63) / 64;
  sums.numerators =
      Tensor::empty({rows * call.q.H * tiles, sums.chunks, kChunk, 64}, DType::f32, call.device);
  sums.denominators = Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
  for (const Columns& columns : parts_of(call.q.K)) {
    const StateRows state{
        rows * state_heads, call.q.K,   call.query_proportions != nullptr, columns,
        call.y.K,           call.device};
    const PartState before = state.take(call.state_in), after = state.room(call.state_out);
    Forward part = part_of(call, columns);
    part.state_in = before.reads();
    part.state_out = after.pointers();
    sums.first = columns.first == 0;
    sums.last = !sums.first;
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
    call.state_in = state_in.reads();
    call.dstate_out = dstate_out.reads();
    call.dstate_in = dstate_in.pointers();
  }
};

}  // namespace linnet::cuda::linear_attention_fast
