// Checks of inputs that block and listed attention share. For their reference.cpp.
#pragma once

#include "core/error.h"
#include "core/sequence_view.h"

namespace linnet::block_attention_detail {

// Throws Error, naming the primitive, unless these are queries, keys and values of as many rows,
// the heads of keys divide those of queries, and `dropout` is a probability.
template <typename T>
void check_attention(const char* primitive, const SequenceView<T>& q, const SequenceView<T>& k,
                     const SequenceView<T>& v, double dropout) {
  require(k.B == q.B && v.B == q.B && v.T == k.T && v.H == k.H && k.K == q.K, primitive, ": q [",
          q.B, ",", q.T, ",", q.H, ",", q.K, "], k [", k.B, ",", k.T, ",", k.H, ",", k.K,
          "] and v [", v.B, ",", v.T, ",", v.H, ",", v.K, "] do not fit together");
  require(k.H > 0 && q.H % k.H == 0, primitive, ": ", k.H, " key heads must divide ", q.H,
          " query heads");
  require(dropout >= 0 && dropout < 1, primitive, ": dropout must be in [0, 1), got ", dropout);
}

}  // namespace linnet::block_attention_detail
