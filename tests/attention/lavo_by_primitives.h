// Causal LAVO made of primitives, as LavoMixer does where one pass does not fit.
#pragma once

#include "attention/lavo/local_weight.h"
#include "attention/lavo/one_pass.h"
#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "autograd/arithmetic.h"

namespace linnet::test {

inline LavoPassResult lavo_by_primitives(const LavoPassVariables& x,
                                         const LavoPassContext& context) {
  BlockAttentionContext block;
  block.options.pattern = BlockPattern::band;
  block.options.causal = true;
  block.options.left = context.options.window - 1;
  block.options.scale = context.options.scale;
  block.query_mask = block.key_mask = context.mask;
  block.segments = context.segments;
  block.place = context.place;
  block.options.dropout = context.options.dropout;
  block.options.dropout_key = context.options.window_key;
  block.bias_origin = context.options.window - 1;
  const Variable local = block_attention({x.q, x.k, x.v, {}, {}, x.bias}, block);
  OrthogonalMemoryContext memory;
  memory.options.window = context.options.window;
  memory.options.scale = context.options.scale;
  memory.query_mask = memory.code_mask = context.mask;
  memory.segments = context.segments;
  memory.positions = context.positions;
  memory.place = context.place;
  memory.options.dropout = context.options.dropout;
  memory.options.dropout_key = context.options.memory_key;
  const OrthogonalMemoryResult global = orthogonal_memory(x.q, local, x.basis, {}, memory);
  const Variable weighted =
      context.options.local_only
          ? multiply(local, Variable(local_weight(global.memory_tokens, local.value())))
          : scale(local, 0.5);
  return {weighted_sum(weighted, 1, global.y, 0.5), global.carry};
}

}  // namespace linnet::test
