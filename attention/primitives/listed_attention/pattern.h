// Which keys listed attention sees and drops, as pure functions that the CPU's and the device's
// kernels share.
#pragma once

#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/listed_attention/cpu.h"

namespace linnet::listed_attention_detail {

using block_attention_detail::DropoutDraws;

// The draws of one head of one example: an element is the time of a query and a place of its list.
constexpr DropoutDraws draws_of(const ListedAttentionOptions& options, int64_t example,
                                int64_t head) {
  BlockAttentionOptions block;
  block.dropout = options.dropout;
  block.dropout_key = options.dropout_key;
  return DropoutDraws(block, example, head);
}

constexpr int64_t lists_of(int64_t queries, int64_t group) {
  return (queries + group - 1) / group;
}

}  // namespace linnet::listed_attention_detail
