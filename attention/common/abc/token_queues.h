// Queues of tokens: which valid tokens of a row are in which queue, in order, and the tokens that
// each queue passes on to the next call. For attention over the last tokens that were pushed (ABC's
// windows).
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Token t of row b is pushed to queue (phase[b] + t) mod Q of that row; padded tokens are pushed
// nowhere, so that queues are dense. Rows of queues are [B*Q], n = T / Q rounded up places each.
struct TokenQueues {
  Tensor order;        // i32 [B*Q,n]: number of the token in a place among all B*T; -1: none
  Tensor place;        // i32 [B,T]: the inverse; -1: padded
  Tensor mask;         // u8 [B*Q,n]: places that hold a token; they come first
  Tensor segments;     // i32 [B*Q,n]: how often the segment changed before; undefined: one per row
  Tensor past_mask;    // u8 [B*Q,P]: carried tokens that the queue's first token continues
  Tensor carry_order;  // i32 [B*Q,keep]: indices into [past ; places], [B*Q,P+n]; -1: none
  Tensor carry_mask;   // u8 [B*Q,keep]: tokens that are carried on; they come last
  Tensor phase;        // i64 [B] of the next call
  Tensor pushed;       // i64 [B*Q]: tokens that each queue got so far, the next call's
  // i64 [B*Q]: of each queue, instead of its example's number, for draws.
  Tensor examples;
};

struct TokenQueueInputs {
  int64_t B = 0, T = 0, queues = 1;
  int64_t keep = 0;  // the most tokens that a queue carries on
  Tensor mask;       // u8 [B,T], 1 = valid; undefined: all
  Tensor segments;   // i32 [B,T]: a queue carries only tokens of the row's last one; undefined: one
  Tensor phase;      // i64 [B]; undefined: 0
  Tensor past_mask;  // u8 [B*Q,P]; undefined: nothing is carried in
  Tensor pushed;     // i64, B*Q elements; undefined: 0
  Tensor examples;   // i64 [B]; undefined: the row indices
  Device device;
};
TokenQueues token_queues(const TokenQueueInputs& inputs);

// `pushed` (i64) of queues each of which gets `count` tokens more.
Tensor pushed_after(const Tensor& pushed, int64_t count);

// out [R,n,...] = tokens of x [B,T,...] by their indices in `order` i32 [R,n], each at most once;
// -1 gives zeros. Tokens without an index are not read. Differentiable, faster with the inverse of
// the order, `place` i32 [B,T].
Variable take_tokens(const Variable& x, const Tensor& order, const Tensor& place = {});

}  // namespace linnet
