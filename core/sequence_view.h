// The operands of every primitive: strided views of sequences and states, padding masks, and spans
// (the segments, one per document, into which packing splits a row).
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace linnet {

// A sequence [B,T,H,K] that the view does not own. The last dimension is contiguous; the others
// have strides in elements, so that one part of a fused projection is read in place.
// SequenceView<const E> is a read-only view; SequenceView<E> converts to it.
template <typename E>
struct SequenceView {
  E* data = nullptr;
  int64_t B = 0, T = 0, H = 0, K = 0;
  int64_t batch_stride = 0, time_stride = 0, head_stride = 0;

  SequenceView() = default;
  // A dense [B,T,H,K] array.
  SequenceView(E* data, int64_t B, int64_t T, int64_t H, int64_t K)
      : SequenceView(data, B, T, H, K, T * H * K, H * K, K) {}
  SequenceView(E* data, int64_t B, int64_t T, int64_t H, int64_t K, int64_t batch_stride,
               int64_t time_stride, int64_t head_stride)
      : data(data),
        B(B),
        T(T),
        H(H),
        K(K),
        batch_stride(batch_stride),
        time_stride(time_stride),
        head_stride(head_stride) {}
  template <typename U>
  requires(std::is_same_v<E, const U>)
      SequenceView(const SequenceView<U>& other)  // NOLINT(google-explicit-constructor)
      : SequenceView(other.data, other.B, other.T, other.H, other.K, other.batch_stride,
                     other.time_stride, other.head_stride) {}

  explicit operator bool() const { return data != nullptr; }
  // The K elements of a token's head.
  E* at(int64_t b, int64_t t, int64_t h) const {
    return data + b * batch_stride + t * time_stride + h * head_stride;
  }
};

// Whether token (b, t) counts: key_mask is [B,T] with 1 = valid, or null when all are.
inline bool is_valid(const uint8_t* key_mask, int64_t b, int64_t t, int64_t T) {
  return key_mask == nullptr || key_mask[b * T + t] != 0;
}

// Tokens [begin, end) of a row that form one sequence of their own: no token attends across spans.
struct Span {
  int64_t row = 0, begin = 0, end = 0;
  // The first span of a row continues the carried state, if there is one.
  bool carries_in = false;
  // The last span of a row produces the row's final state.
  bool carries_out = false;
  // Absolute position of token `begin` in its sequence.
  int64_t start_position = 0;
};

// Splits rows into spans, row by row in ascending order; every row has at least one (empty if
// T = 0). segments [B,T] (null: one span per row): a change of id begins a new sequence at position
// 0. has_state: the first span of every row continues a carried state. start_positions [B] (null:
// zeros): how many tokens of that sequence came before; used for the first span only.
std::vector<Span> make_spans(const int32_t* segments, int64_t B, int64_t T, bool has_state,
                             const int64_t* start_positions = nullptr);

}  // namespace linnet
